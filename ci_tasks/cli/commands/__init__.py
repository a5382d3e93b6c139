"""The core's commands by reference, and the order of the groups in which help lists all commands."""

from __future__ import annotations

from ci_tasks.registry import Command

_RUN, _RESULTS, _HOSTS = "Run a CI label", "Results", "Hosts"
HEADINGS = (_RUN, _RESULTS, "Failures", "Before a run", _HOSTS)
_HERE = "ci_tasks.cli.commands"

COMMANDS = (
    Command("jobs", _RUN, "List the rows of the checkout's workflow.", f"{_HERE}.labels:jobs"),
    Command("plan", _RUN, "Write what `run` would execute, and what differs from CI.", f"{_HERE}.labels:plan"),
    Command("run", _RUN, "Run a CI label on this machine, as `remote --host local`.", f"{_HERE}.run:run"),
    Command("remote", _RUN, "Run a CI label on hosts of hosts.yaml.", f"{_HERE}.run:remote"),
    Command("runs", _RESULTS, "List runs, newest first: status, time, reason.", f"{_HERE}.runs:runs"),
    Command("logs", _RESULTS, "Print a run's log, safe for a terminal, or with --raw unchanged.", f"{_HERE}.runs:logs"),
    Command("attach", _RESULTS, "Follow runs to their end and fetch their results.", f"{_HERE}.runs:attach"),
    Command("fetch", _RESULTS, "Fetch what there is of runs on other hosts.", f"{_HERE}.runs:fetch"),
    Command("cancel", _RESULTS, "Cancel a run and end every process it started.", f"{_HERE}.runs:cancel"),
    Command("shell", _RESULTS, "Open bash where a run is, with its environment.", f"{_HERE}.runs:shell"),
    Command("report", _RESULTS, "Report runs in the terminal, HTML, markdown or JUnit XML.", f"{_HERE}.report:report"),
    Command("hosts", _HOSTS, "List the hosts of hosts.yaml.", f"{_HERE}.hosts:hosts"),
    Command("clean", _HOSTS, "Remove what old runs left on a host.", f"{_HERE}.hosts:clean"),
)
