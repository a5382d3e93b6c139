"""Jobs and runs of GitHub Actions as records: the API's JSON is read here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass

FAILED = ("failure", "timed_out")
INCONCLUSIVE = ("cancelled", "skipped", "neutral", "action_required", "stale")


@dataclass(frozen=True)
class WorkflowRun:
    """A run of a workflow. What the API does not say is "", 0 or empty. `head_repository` is where the commit is
    from: a fork, maybe."""

    id: int
    conclusion: str = ""
    head_sha: str = ""
    head_branch: str = ""
    head_repository: str = ""
    event: str = ""
    pull_requests: tuple[int, ...] = ()
    workflow_path: str = ""


@dataclass(frozen=True)
class WorkflowJob:
    """A job of a run in `repository`. What the API does not say is "", 0 or empty.

    `head_sha` is the pull request's commit; CI checks out its merge, which only the log names.
    """

    repository: str
    run: WorkflowRun
    id: int
    name: str
    status: str
    conclusion: str
    head_sha: str
    head_branch: str
    pull_requests: tuple[int, ...]
    runner_name: str
    html_url: str

    @property
    def has_failed(self) -> bool:
        return self.conclusion in FAILED

    @property
    def title(self) -> str:
        return f"job {self.name!r} of {self.repository}"


def workflow_run(json: Any) -> WorkflowRun:
    pulls = [number_at(pull, "number") for pull in items(json, "pull_requests")]
    return WorkflowRun(
        id=number_at(json, "id"),
        conclusion=text_at(json, "conclusion"),
        head_sha=text_at(json, "head_sha"),
        head_branch=text_at(json, "head_branch"),
        head_repository=text_at(json, "head_repository", "full_name"),
        event=text_at(json, "event"),
        pull_requests=tuple(number for number in pulls if number),
        workflow_path=text_at(json, "path").partition("@")[0],
    )


def workflow_job(json: Any, run: WorkflowRun, repository: str) -> WorkflowJob:
    return WorkflowJob(
        repository=repository,
        run=run,
        id=number_at(json, "id"),
        name=text_at(json, "name"),
        status=text_at(json, "status"),
        conclusion=text_at(json, "conclusion"),
        head_sha=text_at(json, "head_sha") or run.head_sha,
        head_branch=text_at(json, "head_branch") or run.head_branch,
        pull_requests=run.pull_requests,
        runner_name=text_at(json, "runner_name"),
        html_url=text_at(json, "html_url"),
    )


def items(json: Any, key: str) -> list[Any]:
    """One page of a listing, which is an object with its items under `key`, or a bare list."""
    value = json if isinstance(json, list) else _object(json).get(key)
    return value if isinstance(value, list) else []


def text_at(json: Any, *keys: str) -> str:
    """The text at the path `keys`, "" where there is none."""
    for key in keys:
        json = _object(json).get(key)
    return json if isinstance(json, str) else ""


def number_at(json: Any, key: str) -> int:
    value = _object(json).get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
