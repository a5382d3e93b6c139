"""Which machines' jobs run on a Linux host, and what is named of the others."""

from __future__ import annotations

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.errors import WorkflowError
from ci_tasks.planning.runners import architecture, check_runner, runner_deviations
from ci_tasks.workflow import rows
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Job, Row
from ci_tasks.workflow.reader import read
from ci_tasks.workflow.resolve import Resolver
from ci_tasks.workflow.suite import describe


def job_on(runs_on: str) -> tuple[Job, Row, Resolver]:
    parsed = read(f"on: pull_request\njobs:\n  a:\n    runs-on: {runs_on}\n    steps: [{{run: x}}]\n", "w.yml")
    job = parsed.jobs["a"]
    (row,) = rows.rows(parsed, job, EventContext(), describe)
    return job, row, rows.row_resolver(parsed, job, row, EventContext())


@pytest.mark.parametrize(
    "runs_on",
    [
        *("windows-latest", "Windows-2022", "macos-14", "macOS-latest-xlarge", "${{ 'windows-latest' }}"),
        *("[self-hosted, windows]", "{labels: macos-13}"),
    ],
)
def test_a_job_of_another_system_is_refused_by_name(runs_on: str) -> None:
    job, _, resolve = job_on(runs_on)
    with pytest.raises(WorkflowError, match="only Linux jobs can be run") as caught:
        check_runner(job, resolve)
    assert caught.value.job == "a"


@pytest.mark.parametrize(
    ("runs_on", "arch", "named"),
    [
        ("self-hosted", "X64", []),
        ("ubuntu-latest", "X64", [("machine", "GitHub's runner")]),
        ("my-windows-like-box", "X64", []),
        ("farm", "X64", []),
        (
            "ubuntu-24.04-arm",
            "ARM64",
            [("machine", "GitHub's runner"), ("architecture", "ARM64 (ubuntu-24.04-arm)")],
        ),
        ("[self-hosted, ARM64]", "ARM64", [("architecture", "ARM64 (self-hosted, ARM64)")]),
        ("linux-aarch64-a2-8", "ARM64", [("architecture", "ARM64 (linux-aarch64-a2-8)")]),
        ("${{ vars.RUNNER }}", "X64", [("machine", "<vars.RUNNER>")]),
        ("[\"${{ vars.RUNNER || 'gpu' }}\"]", "X64", [("machine", "<vars.RUNNER>")]),
    ],
)
def test_what_differs_about_the_machine_is_named(runs_on: str, arch: str, named: list[tuple[str, str]]) -> None:
    job, row, resolve = job_on(runs_on)
    check_runner(job, resolve)
    assert architecture(job, resolve) == arch
    assert [(item.what, item.ci) for item in runner_deviations(job, row, HostSpec("box"), resolve)] == named
