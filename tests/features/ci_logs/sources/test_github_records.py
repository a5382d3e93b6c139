"""GitHub's answers as records: what an answer lacks, and what it has in another form."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.features.ci_logs.sources.github_records import workflow_job, workflow_run

RUN = {
    "id": 1,
    "conclusion": "failure",
    "event": "pull_request",
    "head_sha": "c0ffee",
    "head_branch": "main",
    "head_repository": {"full_name": "fork/repo"},
    "pull_requests": [{"number": 7}, {}, "odd"],
    "path": ".github/workflows/pr-test.yml@main",
}


def test_a_run_has_its_pull_requests_and_its_workflow_without_the_revision() -> None:
    run = workflow_run(RUN)
    assert (run.id, run.pull_requests, run.workflow_path) == (1, (7,), ".github/workflows/pr-test.yml")
    assert (run.head_repository, run.event) == ("fork/repo", "pull_request")


@pytest.mark.parametrize(
    ("answer", "commit", "branch"),
    [
        ({}, "c0ffee", "main"),
        ({"head_sha": "decade", "head_branch": "dev"}, "decade", "dev"),
        ({"head_sha": None, "head_branch": 3}, "c0ffee", "main"),
    ],
    ids=["neither", "its own", "odd values"],
)
def test_a_job_without_a_commit_of_its_own_has_that_of_its_run(
    answer: dict[str, Any], commit: str, branch: str
) -> None:
    job = workflow_job({"id": 2, "name": "unit", **answer}, workflow_run(RUN), "org/repo")
    assert (job.head_sha, job.head_branch, job.pull_requests) == (commit, branch, (7,))
