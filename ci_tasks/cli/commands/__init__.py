"""The commands by reference, so that none of their modules is loaded, and the order of the groups in which help lists
them."""

from __future__ import annotations

from collections.abc import Iterator

from ci_tasks import registry
from ci_tasks.registry import Command

_RUN, _RESULTS, _HOSTS = "Run a CI label", "Results", "Hosts"
HEADINGS = (_RUN, _RESULTS, "Failures", "Before a run", _HOSTS)
_HERE = "ci_tasks.cli.commands"
_BATCH, _LOCATED, _CODES = (
    "ci_tasks.records:BatchResult",
    "ci_tasks.records:LocatedRun[]",
    "ci_tasks.records:EXIT_CODES",
)
_TRIALS = (
    ("reproduce", "ReproductionResult", "Run a job that failed in CI again, and compare."),
    ("compare", "ComparisonResult", "Compare your tree with a base: is a failure yours?"),
    ("bisect", "BisectionResult", "Find the commit that made a row fail, flaky or not."),
)

COMMANDS = (
    Command(
        "jobs",
        _RUN,
        "List the rows of the checkout's workflow.",
        f"{_HERE}.labels:jobs",
        ("ci_tasks.workflow.model:JobRow[]",),
    ),
    Command(
        "plan",
        _RUN,
        "Write what `run` would execute, and what differs from CI.",
        f"{_HERE}.labels:plan",
        ("ci_tasks.records:PlanEntry[]",),
    ),
    Command(
        "run", _RUN, "Run a CI label on this machine, as `remote --host local`.", f"{_HERE}.run:run", (_BATCH,), _CODES
    ),
    Command("remote", _RUN, "Run a CI label on hosts of hosts.yaml.", f"{_HERE}.run:remote", (_BATCH,), _CODES),
    Command(
        "runs",
        _RESULTS,
        "List runs, newest first: status, time, reason.",
        f"{_HERE}.runs:runs",
        ("ci_tasks.records:RunRecord[]", "ci_tasks.records:RowTally[]"),
    ),
    Command("logs", _RESULTS, "Print a run's log, safe for a terminal, or with --raw unchanged.", f"{_HERE}.runs:logs"),
    Command(
        "attach",
        _RESULTS,
        "Follow runs to their end and fetch their results.",
        f"{_HERE}.runs:attach",
        (_BATCH,),
        _CODES,
    ),
    Command("fetch", _RESULTS, "Fetch what there is of runs on other hosts.", f"{_HERE}.runs:fetch", (_LOCATED,)),
    Command(
        "cancel",
        _RESULTS,
        "Cancel a run: its command and every process it started.",
        f"{_HERE}.runs:cancel",
        (_LOCATED,),
    ),
    Command("shell", _RESULTS, "Open bash where a run is, with its environment.", f"{_HERE}.runs:shell"),
    Command(
        "retry",
        _RESULTS,
        "Run the failed step of a kept run again with your edits.",
        f"{_HERE}.runs:retry",
        (_BATCH,),
        _CODES,
    ),
    Command(
        "report",
        _RESULTS,
        "Report runs in the terminal, HTML, markdown or JUnit XML.",
        f"{_HERE}.report:report",
        (_BATCH,),
    ),
    *(
        Command(
            name,
            "Failures",
            summary,
            f"ci_tasks.trials.command:{name}",
            (f"ci_tasks.trials.{name}:{record}",),
            f"ci_tasks.trials.words:{name.upper()}",
        )
        for name, record, summary in _TRIALS
    ),
    Command(
        "hosts",
        _HOSTS,
        "List the hosts of hosts.yaml.",
        f"{_HERE}.hosts:hosts",
        ("ci_tasks.run.hosts_files:ListedHost[]",),
    ),
    Command(
        "clean",
        _HOSTS,
        "Remove what old runs left on a host.",
        f"{_HERE}.hosts:clean",
        ("ci_tasks.run.clean:CleanedRun[]",),
    ),
)


def commands() -> Iterator[Command]:
    """The core's, then those of the features, which are loaded only then."""
    yield from COMMANDS
    for feature in registry.features():
        yield from feature.commands


def command_names() -> list[str]:
    return [command.name for command in commands()]


def find(name: str) -> Command | None:
    """The command of that name, None if there is no such command."""
    return next((command for command in commands() if command.name == name), None)
