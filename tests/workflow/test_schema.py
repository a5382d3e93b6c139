"""No key of GitHub's workflow syntax is silently dropped: each is read, refused by name, or named as a difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.errors import WorkflowError
from ci_tasks.workflow.model import Workflow
from ci_tasks.workflow.reader import REFUSED, WITHOUT_EFFECT, keys, read

LISTED = Path(__file__).parent / "data/github-workflow-keys.txt"
KEYS = keys()
GITHUB = [line for line in LISTED.read_text().splitlines() if not line.startswith("#")]


def test_every_key_of_githubs_schema_is_in_the_table() -> None:
    known = {".".join(path.split(".")[:length]) for path in KEYS for length in range(1, path.count(".") + 2)}
    assert [path for path in GITHUB if not any(f"{path}.".startswith(f"{each}.") for each in known)] == []


def test_the_table_has_no_key_that_github_does_not_have() -> None:
    newer = {"on.image_version", "on.pull_request_comment"}
    assert {path for path in KEYS if path not in GITHUB} <= newer


def of_treatment(treatment: str) -> list[str]:
    return [path for path, spec in KEYS.items() if spec[0] == treatment]


def workflow_with(path: str) -> Workflow:
    """A workflow with a job `a` and a value at the path."""
    tree: dict[str, Any] = {"on": {"pull_request": {}}, "jobs": {"a": {"runs-on": "x", "steps": [{"run": "x"}]}}}
    at: Any = tree
    *parents, last = path.replace("<id>", "a").split(".")
    for part in parents:
        if part == "[]":
            at = at[0]
            continue
        if not isinstance(at.get(part), (dict, list)):
            at[part] = {"image": "i"} if part == "container" else {}
        at = at[part]
    at[last] = "./x.yml" if last == "uses" else {"key": "value"}
    if last == "uses":
        del tree["jobs"]["a"]["steps"]
    return read(json.dumps(tree), "w.yml")


@pytest.mark.parametrize("path", of_treatment(REFUSED))
def test_a_refused_key_is_kept_for_whoever_runs_the_job(path: str) -> None:
    """With its reason, and without an error for the other jobs of the workflow."""
    job = workflow_with(path).jobs["a"]
    refused = [*job.refused, *(key for step in job.steps for key in step.refused)]
    assert [(key.name, key.why) for key in refused] == [
        (path.rpartition("jobs.<id>.")[2].removeprefix("steps.[]."), KEYS[path][1])
    ]


@pytest.mark.parametrize("path", of_treatment(WITHOUT_EFFECT))
def test_a_key_without_effect_is_kept_with_its_reason(path: str) -> None:
    parsed = workflow_with(path)
    unused = [*parsed.unused, *parsed.jobs["a"].unused]
    assert [(key.name, key.why) for key in unused] == [(path.removeprefix("jobs.<id>."), KEYS[path][1])]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("on: pull_request\nrun_name: x\n", "the workflow has no key 'run_name'; did you mean 'run-name'?"),
        ("on: pull_requests\n", "on has no event 'pull_requests'; did you mean 'pull_request'?"),
        ("on: [psuh]\n", "on has no event 'psuh'; did you mean 'push'?"),
        ("on: {pull_request: {path: [a]}}\n", "on.pull_request has no key 'path'; did you mean 'paths'?"),
        ("on: {workflow_call: {inputs: {a: {defualt: 1}}}}\n", "on.workflow_call.inputs.<id> has no key 'defualt'"),
    ],
)
def test_an_unknown_key_is_named(text: str, message: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        read(f"{text}jobs: {{a: {{runs-on: x, steps: [{{run: x}}]}}}}\n", "w.yml")
    assert message in caught.value.message
