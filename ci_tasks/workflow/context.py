"""The event CI would be in: a pull request that carries the label, as GitHub's contexts.

Names and shapes are those of GitHub's "Contexts reference", and of "Webhook events and payloads" for the pull request.
What only GitHub knows is Unknown. There is no pull request yet, so its number and its branch are absent: they are null
in `${{ github.event.pull_request.number || 'non-pr' }}`, as outside of a pull request, and have no text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import reduce
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.given_values import NOTHING_GIVEN, GivenValues
from ci_tasks.workflow import secrets
from ci_tasks.workflow.expressions import ExpressionError, interpolate
from ci_tasks.workflow.model import Job, Row, Workflow, WorkflowInput
from ci_tasks.workflow.values import OpenObject, Unknown, Value, index, parse_number, to_string

_UNKNOWN_SHA = "0" * 40
_EVENT = "github.event"
# What stands here for a value of GitHub's, in a run that nobody started there.
ASSUMED = (
    *("github.event.pull_request.draft", "github.event.pull_request.merged", "github.event.pull_request.state"),
    *("github.event.pull_request.head.repo.fork", "github.base_ref", "github.event.pull_request.base.ref"),
    *("github.actor", "github.triggering_actor", "github.run_id", "github.run_number", "github.run_attempt"),
)


@dataclass(frozen=True)
class EventContext:
    """What a run's contexts are made of.

    `outputs` are those of the jobs that were run for them; `secrets` are names, and so are `empty_secrets`, which are
    set to nothing. `read_secret` gives the value of one for a comparison, None where it is not set. `given` is what a
    person says of what only GitHub knows.
    """

    sha: str = _UNKNOWN_SHA
    repository: str = "owner/repository"
    workspace: str = "/github/workspace"
    base: str = "main"
    secrets: tuple[str, ...] = ()
    empty_secrets: tuple[str, ...] = ()
    read_secret: Callable[[str], str | None] = field(default=lambda name: None, repr=False, compare=False)
    outputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    given: GivenValues = NOTHING_GIVEN


def contexts(event: EventContext, workflow: Workflow, job: Job, row: Row) -> dict[str, Any]:
    """GitHub's contexts for one row of `job`, as the expression evaluator takes them. Of the row count its trigger, and
    its entry of the matrix."""
    inputs = _inputs(event, workflow)
    machine: dict[str, Value] = {"os": "Linux", "arch": "X64", "name": "ci-tasks", "temp": "/tmp", "debug": None}
    values: dict[str, Any] = {
        "github": _github(event, workflow, row, inputs),
        "env": {},
        "matrix": dict(row.matrix),
        "inputs": inputs,
        "secrets": secrets.SecretsObject(event.secrets, event.empty_secrets, event.read_secret),
        "needs": {name: {"outputs": _outputs(event, workflow, name), "result": "success"} for name in job.needs},
        "steps": {},
        "runner": OpenObject("runner", {**machine, "environment": "self-hosted"}),
        "vars": OpenObject("vars", dict(event.given.vars)),
        "job": {"status": "success"},
    }
    strategy = {"job-index": row.index, "job-total": row.total, "fail-fast": _evaluated(job.fail_fast, values)}
    limit = _evaluated(job.max_parallel, values)
    return {**values, "strategy": {**strategy, "max-parallel": row.total if limit is None else limit}}


def _evaluated(raw: Any, values: Mapping[str, Value]) -> Value:
    """A number or boolean of the job's `strategy`; Unknown where it cannot be evaluated."""
    try:
        return interpolate(raw, values) if isinstance(raw, str) else raw
    except ExpressionError:
        return Unknown((raw,))


def _inputs(event: EventContext, workflow: Workflow) -> OpenObject:
    """Absent where a pull request or a push starts the workflow, unless they are given."""
    inputs: dict[str, Value] = {
        name: body.default if body.default is not None else Unknown.named_value(f"inputs.{name}")
        for name, body in (workflow.inputs if workflow.needs_inputs else {}).items()
    }
    for name, text in event.given.inputs.items():
        kind = workflow.inputs.get(name, WorkflowInput()).type
        of_boolean: Value = text.strip().lower() == "true" if kind == "boolean" else text
        inputs[name] = parse_number(text) if kind == "number" else of_boolean
    return OpenObject("inputs", inputs, absent=True)


def _outputs(event: EventContext, workflow: Workflow, job: str) -> dict[str, Value]:
    """The outputs of a needed job: given, of its own run, or known only on GitHub."""
    name = f"needs.{job}.outputs"
    known: dict[str, Value] = {**event.outputs.get(job, {}), **event.given.outputs.get(job, {})}
    needed = workflow.jobs.get(job)
    if needed is None or needed.uses:
        return OpenObject(name, known)
    return {**{output: Unknown.named_value(f"{name}.{output}") for output in needed.outputs}, **known}


def _github(event: EventContext, workflow: Workflow, row: Row, inputs: Mapping[str, Value]) -> dict[str, Value]:
    payload = _payload(event, workflow, row.trigger, inputs)
    whole: Value = payload
    number, head, base, actor = (reduce(index, path.split("."), whole) for path in _OF_THE_PAYLOAD)
    ref = f"{0 if isinstance(number, Unknown) else to_string(number)}/merge"
    token = secrets.marks(event.secrets).get("GITHUB_TOKEN")
    by = "ci-tasks" if isinstance(actor, Unknown) else actor
    known: dict[str, Value] = {
        **_FIXED,
        "event": payload,
        "sha": event.sha,
        "ref": f"refs/pull/{ref}",
        "ref_name": ref,
        "head_ref": Unknown.named_value("github.head_ref", absent=True) if isinstance(head, Unknown) else head,
        "base_ref": base,
        "repository": event.repository,
        "repository_owner": event.repository.split("/")[0],
        "workspace": event.workspace,
        "workflow": workflow.name,
        "job": row.job,
        **dict.fromkeys(("actor", "triggering_actor"), by),
        "token": token or Unknown.named_value("secrets.GITHUB_TOKEN", absent=True),
    }
    return OpenObject("github", known)


_FIXED = {
    "event_name": "pull_request",
    "ref_type": "branch",
    "run_id": "0",
    "run_number": "0",
    "run_attempt": "1",
    "server_url": "https://github.com",
    "api_url": "https://api.github.com",
    "graphql_url": "https://api.github.com/graphql",
}
_OF_THE_PAYLOAD = ("number", "pull_request.head.ref", "pull_request.base.ref", "sender.login")


def _payload(
    event: EventContext, workflow: Workflow, trigger: str | None, inputs: Mapping[str, Value]
) -> dict[str, Value]:
    """The payload of `pull_request: labeled`. A key of other events' payloads is null in it."""
    owner, _, name = event.repository.partition("/")
    repository = {"full_name": event.repository, "name": name or owner, "owner": {"login": owner}}
    label: dict[str, Value] = {"name": trigger} if trigger else {}
    given = event.given.event
    pull_request = {
        "number": Unknown.named_value(f"{_EVENT}.pull_request.number", absent=True),
        "draft": False,
        "merged": False,
        "state": "open",
        "labels": [label] if label else [],
        "head": {"sha": event.sha, "repo": {**repository, "fork": False}},
        "base": {"ref": event.base, "repo": repository},
    }
    payload: dict[str, Value] = {
        "action": "labeled",
        "label": OpenObject(f"{_EVENT}.label", label),
        "number": Unknown.named_value(f"{_EVENT}.number", absent=True),
        "pull_request": _open(f"{_EVENT}.pull_request", pull_request),
        "repository": _open(f"{_EVENT}.repository", repository),
        **{name: OpenObject(f"{_EVENT}.{name}") for name in ("sender", "organization", "installation", "enterprise")},
    }
    if workflow.needs_inputs or event.given.inputs:
        payload["inputs"] = {
            name: Unknown.named_value(f"inputs.{name}") if isinstance(value, Unknown) else to_string(value)
            for name, value in inputs.items()
        }
    # A payload names the number twice, and a person may give it once.
    of_request = given.get("pull_request")
    number = given.get("number", of_request.get("number") if isinstance(of_request, Mapping) else None)
    twice = {} if number is None else {"number": number, "pull_request": {"number": number}}
    _merge(payload, twice)
    _merge(payload, given)
    return payload


def _open(name: str, members: Mapping[str, Any]) -> OpenObject:
    """An object whose other members only GitHub knows, and those of the objects in it."""
    return OpenObject(
        name,
        {key: _open(f"{name}.{key}", value) if isinstance(value, dict) else value for key, value in members.items()},
    )


def _merge(payload: dict[str, Value], given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        before = payload.get(key)
        if isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value)
        elif isinstance(value, Mapping) and isinstance(payload, OpenObject):
            payload[key] = _open(f"{payload.name}.{key}", value)
        else:
            payload[key] = value
