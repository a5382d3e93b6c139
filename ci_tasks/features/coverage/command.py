"""The command `coverage`: what the checkout's CI covers, generated."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.snapshot import take_snapshot
from ci_tasks.cli.options import switch, text
from ci_tasks.cli.shared import CheckoutOptions, print_result
from ci_tasks.features.coverage.coverage import (
    CheckoutCoverage,
    checkout_coverage,
    coverage_report,
    diff_report,
    difference,
)  # fmt: skip
from ci_tasks.features.recorder.record import open_recorder
from ci_tasks.features.suites.slime_helpers import HELPERS
from ci_tasks.resources import make_home
from ci_tasks.run.checkout_source import CheckoutSource, event_context, open_source
from ci_tasks.run.find_rows import list_jobs
from ci_tasks.workflow.model import Job

_STARTS_TESTS = re.compile(r"\b(?:pytest|unittest|torchrun)\b.*\btests?\b|\bpython3?\b.*\btests?/")


@dataclass(frozen=True)
class CoverageOptions(CheckoutOptions):
    json: bool = switch("print JSON instead of markdown").field()
    markdown: bool = switch("markdown, to paste into an issue (the default)").field()
    diff: str | None = text("show what this checkout covers more or less than this revision", "REV").field()
    record: bool = switch("execute the tests with stubs in a sandbox; shows more than their source").field()


def coverage(options: CoverageOptions) -> int:
    """
    ci-tasks coverage                              for the tracking issue
    ci-tasks coverage --diff origin/main           what a branch adds and loses
    ci-tasks coverage --rev v0.2.2 --json
    ci-tasks coverage --record                     also what only a run of the tests shows

    Reads the tests. With --record it also executes them, with stubs for imports and programs, in a sandbox without
    network.
    """
    say = partial(print, file=sys.stderr, flush=True)
    source = open_source(options.repo, options.rev, options.workflow)
    say(source.headline)
    covered = source_coverage(source, record=options.record, say=say)
    if options.diff:
        other = open_source(str(source.path), options.diff, options.workflow)
        changed = difference(source_coverage(other, record=options.record, say=say), covered)
        print_result(changed, lambda: [diff_report(changed)], as_json=options.json)
    else:
        print_result(covered, lambda: [coverage_report(covered)], as_json=options.json)
    return 0


def source_coverage(
    source: CheckoutSource, *, record: bool = False, say: Callable[[str], object] = lambda text: None
) -> CheckoutCoverage:
    """What the CI of a checkout, or of its revision, covers. Raises CheckoutError, WorkflowError."""
    say("reading the checkout and its tests")
    snapshot = take_snapshot(source.path, make_home() / "sync" / "lint", rev=source.rev)
    commands = {id: _test_commands(job) for id, job in source.workflow.jobs.items()}
    name = "the embedded sample" if source.sample else event_context(source, secrets=()).repository
    at = "" if source.sample or not (head := snapshot.checkout.head or snapshot.checkout.commit) else f" at {head[:7]}"
    changed = " with local changes" if at and snapshot.checkout.dirty and source.rev is None else ""
    recorder = open_recorder(source.path, snapshot.read_file, HELPERS, rev=source.rev, execute=record, say=say)

    about = f"{name}{at}{changed}", source.workflow.place, list_jobs(source)
    return checkout_coverage(*about, snapshot.read_file, recorder.record, commands)


def _test_commands(job: Job) -> list[str]:
    """The lines of a job's steps that start tests."""
    steps = (inner for step in job.steps for inner in step.all_steps)
    lines = (line.strip() for step in steps for line in (step.run or "").splitlines())
    return list(dict.fromkeys(line for line in lines if _STARTS_TESTS.search(line)))
