"""Which machines' rows run on a Linux host, and what is named of the others."""

from __future__ import annotations

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.errors import WorkflowError
from ci_tasks.given_values import GivenValues
from ci_tasks.planning.actions import architecture
from ci_tasks.planning.deviations import runner_deviations
from ci_tasks.planning.planner import check_row
from ci_tasks.workflow import rows
from ci_tasks.workflow.context import EventContext, Resolver
from ci_tasks.workflow.model import Job, Row, Workflow
from ci_tasks.workflow.reader import read
from ci_tasks.workflow.suite import describe
from tests.parts.cases import cases

CASES = cases("planning/data/runners.yaml")


def job_on(runs_on: str, event: EventContext = EventContext()) -> tuple[Workflow, Job, Row, Resolver]:
    parsed = read(f"on: pull_request\njobs:\n  a:\n    runs-on: {runs_on}\n    steps: [{{run: x}}]\n", "w.yml")
    job = parsed.jobs["a"]
    (row,) = rows.rows(parsed, job, event, describe)
    return parsed, job, row, rows.row_resolver(parsed, job, row, event)


@pytest.mark.parametrize(("runs_on", "why"), CASES["a row whose machine has no equivalent is refused by name"])
def test_a_row_whose_machine_has_no_equivalent_is_refused_by_name(runs_on: str, why: str) -> None:
    parsed, job, row, _ = job_on(runs_on)
    with pytest.raises(WorkflowError) as caught:
        check_row(parsed, job, row)
    assert why in caught.value.message and f"runs-on: {job.runs_on}" in caught.value.message
    assert ("--gpus N" in caught.value.hint) == ("does not say" in why)
    assert (caught.value.job, caught.value.exit_code) == ("a", 2)


@pytest.mark.parametrize(("runs_on", "arch", "named"), CASES["what differs about the machine is named"])
def test_what_differs_about_the_machine_is_named(runs_on: str, arch: str, named: list[list[str]]) -> None:
    parsed, job, row, resolve = job_on(runs_on, EventContext(given=GivenValues(gpus=4)))
    check_row(parsed, job, row)
    assert architecture(job, resolve) == arch
    assert [[item.what, item.ci] for item in runner_deviations(job, row, HostSpec("box"), resolve)] == named
