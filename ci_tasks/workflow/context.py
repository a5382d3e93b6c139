"""The event CI would be in: a pull request that carries the label, as GitHub's contexts.

Names and shapes are those of GitHub's "Contexts reference". What only GitHub knows is null: the pull request's number
above all, so that `${{ github.event.pull_request.number || 'non-pr' }}` gives what it gives outside of a pull request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.workflow import secrets
from ci_tasks.workflow.model import Job, Workflow

_UNKNOWN_SHA = "0" * 40


@dataclass(frozen=True)
class EventContext:
    """What a run's contexts are made of.

    `outputs` are those of the jobs that were run for them; `secrets` are names.
    """

    sha: str = _UNKNOWN_SHA
    repository: str = "owner/repository"
    workspace: str = "/github/workspace"
    base: str = "main"
    secrets: tuple[str, ...] = ()
    outputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def contexts(
    event: EventContext,
    workflow: Workflow,
    job: Job,
    trigger: str | None,
    matrix: Mapping[str, Any],
    index: int,
    total: int,
) -> dict[str, Any]:
    """GitHub's contexts for one row of `job`, as the expression evaluator takes them."""
    return {
        "github": _github(event, workflow.name, job.id, trigger),
        "env": {},
        "matrix": dict(matrix),
        "inputs": dict(workflow.inputs),
        "secrets": secrets.marks(event.secrets),
        "needs": {name: {"outputs": dict(event.outputs.get(name, {})), "result": "success"} for name in job.needs},
        "steps": {},
        "runner": {"os": "Linux", "arch": "X64", "name": "ci-tasks", "temp": "/tmp", "environment": "self-hosted"},
        "vars": {},
        "strategy": {"job-index": index, "job-total": total, "fail-fast": False, "max-parallel": total},
        "job": {"status": "success"},
    }


def _github(event: EventContext, workflow: str, job: str, trigger: str | None) -> dict[str, Any]:
    owner = event.repository.split("/")[0]
    labels = [{"name": trigger}] if trigger else []
    return {
        "event_name": "pull_request",
        "event": {
            "action": "labeled",
            "pull_request": {
                "number": None,
                "draft": False,
                "labels": labels,
                "head": {"sha": event.sha, "repo": {"full_name": event.repository, "fork": False}},
                "base": {"ref": event.base, "repo": {"full_name": event.repository}},
            },
            "repository": {"full_name": event.repository, "owner": {"login": owner}},
        },
        "sha": event.sha,
        "ref": "refs/pull/0/merge",
        "ref_name": "0/merge",
        "head_ref": "",
        "base_ref": event.base,
        "repository": event.repository,
        "repository_owner": owner,
        "workspace": event.workspace,
        "workflow": workflow,
        "job": job,
        "run_id": "0",
        "run_number": "0",
        "run_attempt": "1",
        "actor": "ci-tasks",
        "triggering_actor": "ci-tasks",
        "server_url": "https://github.com",
        "api_url": "https://api.github.com",
        "token": secrets.marks(event.secrets).get("GITHUB_TOKEN"),
    }
