"""The commands by reference, so that none of their modules is loaded, and the order of the groups in which help lists
them."""

from __future__ import annotations

from collections.abc import Iterator

from ci_tasks import registry
from ci_tasks.registry import Command

_RUN, _RESULTS, _FAILURES, _HOSTS = "Run a CI label", "Results", "Failures", "Hosts"
HEADINGS = (_RUN, _RESULTS, _FAILURES, "Before a run", _HOSTS)
_RECORDS = "ci_tasks.records"
_BATCH, _LOCATED = (f"{_RECORDS}:BatchResult",), (f"{_RECORDS}:LocatedRun[]",)
_PLANS, _RUNS = (f"{_RECORDS}:PlanEntry[]",), (f"{_RECORDS}:RunRecord[]", f"{_RECORDS}:RowTally[]")
_ROWS = ("ci_tasks.workflow.model:JobRow[]", "ci_tasks.workflow.rows:LabelStart[]")
_CODES = f"{_RECORDS}:EXIT_CODES"


def _command(module: str, group: str, name: str, summary: str, json: tuple[str, ...] = (), codes: str = "") -> Command:
    return Command(name, group, summary, f"{__name__}.{module}:{name}", json, codes)


def _trial(name: str, record: str, summary: str) -> Command:
    trials = "ci_tasks.trials"
    json = (f"{trials}.{name}:{record}",)
    return Command(name, _FAILURES, summary, f"{trials}.command:{name}", json, f"{trials}.words:{name.upper()}")


COMMANDS = (
    _command("labels", _RUN, "jobs", "List the rows of the checkout's workflow.", _ROWS),
    _command("labels", _RUN, "plan", "Write what `run` would execute, and what differs from CI.", _PLANS),
    _command("labels", _RUN, "run", "Run a CI label on this machine, as `remote --host local`.", _BATCH, _CODES),
    _command("labels", _RUN, "remote", "Run a CI label on hosts of hosts.yaml.", _BATCH, _CODES),
    _command("runs", _RESULTS, "runs", "List runs, newest first: status, time, reason.", _RUNS),
    _command("runs", _RESULTS, "logs", "Print a run's log, safe for a terminal, or with --raw unchanged."),
    _command("runs", _RESULTS, "attach", "Follow runs to their end and fetch their results.", _BATCH, _CODES),
    _command("runs", _RESULTS, "fetch", "Fetch results and logs so far from other hosts.", _LOCATED),
    _command("runs", _RESULTS, "cancel", "Cancel a run: its command and the processes that it started.", _LOCATED),
    _command("runs", _RESULTS, "shell", "Open bash in a run's container or workspace, with its environment."),
    _command("runs", _RESULTS, "retry", "Run the failed step of a kept run again with your edits.", _BATCH, _CODES),
    _command("runs", _RESULTS, "report", "Report runs in the terminal, HTML, markdown or JUnit XML.", _BATCH),
    _command("runs", _FAILURES, "triage", "Find what failed in a job's log, and why.", (f"{_RECORDS}:Triage",)),
    _trial("reproduce", "ReproductionResult", "Run a job that failed in CI again, and compare."),
    _trial("compare", "ComparisonResult", "Compare your tree with a base: is a failure yours?"),
    _trial("bisect", "BisectionResult", "Find the commit that made a row fail, flaky or not."),
    _command("runs", _HOSTS, "hosts", "List the hosts of hosts.yaml.", ("ci_tasks.run.hosts_files:ListedHost[]",)),
    _command("runs", _HOSTS, "clean", "Remove what old runs left on a host.", ("ci_tasks.run.clean:CleanedRun[]",)),
)


def commands() -> Iterator[Command]:
    """The core's, then the features', which are loaded only then."""
    yield from COMMANDS
    for feature in registry.features():
        yield from feature.commands


def command_names() -> list[str]:
    return [command.name for command in commands()]


def find(name: str) -> Command | None:
    """The command of that name, None if there is no such command."""
    return next((command for command in commands() if command.name == name), None)
