"""What GitHub's API knows of a job beside its log, as records: the API's JSON stops here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAILED = ("failure", "timed_out")
UNDECIDED = ("cancelled", "skipped", "neutral", "action_required", "stale")


@dataclass(frozen=True)
class StepFacts:
    """Times are ISO 8601 as GitHub writes them, "" where there is none."""

    number: int
    name: str
    conclusion: str
    started_at: str
    completed_at: str


@dataclass(frozen=True)
class JobFacts:
    """A job of one attempt of a run. What the API does not say is "", 0 or empty, never guessed.

    `head_sha` is the pull request's commit; CI checks out its merge, which only the log names. `repository` is where
    the run is, `head_repository` where the commit is from: a fork, maybe.
    """

    repository: str
    run_id: int
    attempt: int
    job_id: int
    name: str
    status: str
    conclusion: str
    head_sha: str
    head_branch: str
    head_repository: str
    event: str
    pull_requests: tuple[int, ...]
    workflow: str
    workflow_path: str
    runner_name: str
    labels: tuple[str, ...]
    started_at: str
    completed_at: str
    html_url: str
    steps: tuple[StepFacts, ...]

    @property
    def has_failed(self) -> bool:
        return self.conclusion in FAILED

    @property
    def title(self) -> str:
        return f"job {self.name!r} of {self.repository}"


@dataclass(frozen=True)
class RunFacts:
    """An attempt of a run."""

    run_id: int
    attempt: int
    status: str
    conclusion: str
    head_sha: str
    head_branch: str
    head_repository: str
    event: str
    pull_requests: tuple[int, ...]
    workflow: str
    workflow_path: str
    html_url: str


def run_facts(said: Any) -> RunFacts:
    found = _dict(said)
    pulls = [_int(_dict(pull).get("number")) for pull in _list(found.get("pull_requests"))]
    return RunFacts(
        run_id=_int(found.get("id")),
        attempt=_int(found.get("run_attempt")),
        status=_str(found.get("status")),
        conclusion=_str(found.get("conclusion")),
        head_sha=_str(found.get("head_sha")),
        head_branch=_str(found.get("head_branch")),
        head_repository=_str(_dict(found.get("head_repository")).get("full_name")),
        event=_str(found.get("event")),
        pull_requests=tuple(number for number in pulls if number),
        workflow=_str(found.get("name")),
        workflow_path=_str(found.get("path")).partition("@")[0],
        html_url=_str(found.get("html_url")),
    )


def job_facts(said: Any, run: RunFacts, repository: str) -> JobFacts:
    found = _dict(said)
    return JobFacts(
        repository=repository,
        run_id=run.run_id,
        attempt=_int(found.get("run_attempt")) or run.attempt,
        job_id=_int(found.get("id")),
        name=_str(found.get("name")),
        status=_str(found.get("status")),
        conclusion=_str(found.get("conclusion")),
        head_sha=_str(found.get("head_sha")) or run.head_sha,
        head_branch=_str(found.get("head_branch")) or run.head_branch,
        head_repository=run.head_repository,
        event=run.event,
        pull_requests=run.pull_requests,
        workflow=run.workflow,
        workflow_path=run.workflow_path,
        runner_name=_str(found.get("runner_name")),
        labels=tuple(_str(label) for label in _list(found.get("labels"))),
        started_at=_str(found.get("started_at")),
        completed_at=_str(found.get("completed_at")),
        html_url=_str(found.get("html_url")),
        steps=tuple(_step(step) for step in _list(found.get("steps"))),
    )


def items(said: Any, key: str) -> list[Any]:
    """One page of a listing, which is an object with its items under `key`, or a bare list."""
    return _list(said) or _list(_dict(said).get(key))


def text_at(said: Any, *keys: str) -> str:
    """The text at `keys` in what the API said, "" where there is none."""
    for key in keys:
        said = _dict(said).get(key)
    return _str(said)


def number_at(said: Any, key: str) -> int:
    return _int(_dict(said).get(key))


def _step(said: Any) -> StepFacts:
    found = _dict(said)
    return StepFacts(
        number=_int(found.get("number")),
        name=_str(found.get("name")),
        conclusion=_str(found.get("conclusion")),
        started_at=_str(found.get("started_at")),
        completed_at=_str(found.get("completed_at")),
    )


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _str(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
