"""The command line: `invoke --list` in this repository, `ci-tasks --list` anywhere."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.program import Program

from ci_tasks import parser
from ci_tasks.commands.bisect import bisect
from ci_tasks.commands.coverage import coverage
from ci_tasks.commands.failures import reproduce, triage
from ci_tasks.commands.hosts import clean, doctor, hosts
from ci_tasks.commands.labels import jobs, plan, remote, run
from ci_tasks.commands.lint import lint
from ci_tasks.commands.report import report
from ci_tasks.commands.runs import attach, cancel, fetch, logs, runs, shell
from ci_tasks.commands.verl import verl

parser.install()

namespace = Collection(
    *(jobs, plan, run, remote),
    *(triage, reproduce, bisect),
    verl,
    *(lint, coverage),
    *(runs, logs, attach, fetch, cancel, shell, report),
    *(hosts, doctor, clean),
)


def main() -> None:
    """The program `ci-tasks`: the same commands, from any directory."""
    from ci_tasks import __version__

    Program(name="ci-tasks", binary="ci-tasks", namespace=namespace, version=__version__).run()
