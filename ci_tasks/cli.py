"""The command line: `invoke --list` in this repository, `ci-tasks --list` anywhere."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.program import Program

from ci_tasks import completion, manual, parser
from ci_tasks.commands.bisect import bisect
from ci_tasks.commands.coverage import coverage
from ci_tasks.commands.failures import reproduce, triage
from ci_tasks.commands.hosts import clean, doctor, hosts
from ci_tasks.commands.labels import jobs, plan, remote, run
from ci_tasks.commands.lint import lint
from ci_tasks.commands.prefetch import prefetch
from ci_tasks.commands.report import report
from ci_tasks.commands.runs import attach, cancel, fetch, logs, runs, shell
from ci_tasks.commands.verl import verl

GROUPS = {
    "Run a CI label": (jobs, plan, run, remote),
    "What ran": (runs, logs, attach, fetch, cancel, shell, report),
    "When a job failed": (triage, reproduce, bisect),
    "Before a run": (lint, coverage, prefetch),
    "Hosts": (hosts, doctor, clean),
    "Megatron-Bridge": (verl,),
}

parser.install()
manual.install({heading: [task.name for task in tasks] for heading, tasks in GROUPS.items()})
completion.install()

namespace = Collection(*(task for tasks in GROUPS.values() for task in tasks))


def main() -> None:
    """The program `ci-tasks`: the same commands, from any directory."""
    from ci_tasks import __version__

    Program(name="ci-tasks", binary="ci-tasks", namespace=namespace, version=__version__).run()
