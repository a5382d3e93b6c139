"""The contexts are those of a pull request that carries the job's label."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.workflow import secrets
from ci_tasks.workflow.context import EventContext, contexts
from ci_tasks.workflow.expressions import evaluate
from ci_tasks.workflow.model import Job, Workflow

EVENT = EventContext(
    sha="abc",
    repository="THUDM/slime",
    workspace="/w",
    base="dev",
    secrets=("HF_TOKEN",),
    outputs={"detect": {"matrix": "[]"}, "other": {"x": "1"}},
)
JOB = Job("ckpt", 1, needs=("detect", "lint"))
WORKFLOW = Workflow("w.yml", "PR", {"ckpt": JOB}, inputs={"image": "x:1"})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("github.event_name", "pull_request"),
        ("contains(github.event.pull_request.labels.*.name, 'run-ci-ckpt')", True),
        ("contains(github.event.pull_request.labels.*.name, 'run-ci')", False),
        ("github.sha", "abc"),
        ("github.repository", "THUDM/slime"),
        ("github.repository_owner", "THUDM"),
        ("github.workspace", "/w"),
        ("github.base_ref", "dev"),
        ("github.workflow", "PR"),
        ("github.job", "ckpt"),
        ("github.event.pull_request.head.repo.full_name == github.repository", True),
        # What only GitHub knows is null.
        ("github.event.pull_request.number || 'non-pr'", "non-pr"),
        ("github.event.inputs.infinite_run || 'false'", "false"),
        ("matrix.info.num_gpus", 8),
        ("strategy.job-index", 1),
        ("strategy.job-total", 3),
        ("strategy.max-parallel", 3),
        ("strategy.fail-fast", False),  # rows go on when another one fails
        ("github.event.pull_request.draft", False),
        ("github.event.pull_request.head.repo.fork", False),
        ("inputs.image", "x:1"),
        # Secrets are marks; one that is not set is null, as on GitHub.
        ("secrets.HF_TOKEN", secrets.mark("HF_TOKEN")),
        ("secrets.OTHER", None),
        ("github.token", None),
        # Only jobs that are needed are seen, with the outputs that are known.
        ("needs.detect.outputs.matrix", "[]"),
        ("needs.detect.result", "success"),
        ("needs.lint.outputs.x", None),
        ("needs.other", None),
        ("steps.x.outputs.y", None),
        ("vars.X", None),
        ("runner.os", "Linux"),
    ],
)
def test_a_row_sees_githubs_contexts(expression: str, value: Any) -> None:
    values = contexts(EVENT, WORKFLOW, JOB, "run-ci-ckpt", {"info": {"num_gpus": 8}}, 1, 3)
    assert evaluate(expression, values) == value


def test_the_token_is_the_secret_of_that_name() -> None:
    values = contexts(EventContext(secrets=("GITHUB_TOKEN",)), WORKFLOW, JOB, None, {}, 0, 1)
    assert evaluate("github.token", values) == secrets.mark("GITHUB_TOKEN")


def test_a_job_without_a_label_sees_none() -> None:
    values = contexts(EventContext(), WORKFLOW, JOB, None, {}, 0, 1)
    assert evaluate("toJSON(github.event.pull_request.labels)", values) == "[]"
    assert evaluate("github.token", values) is None
