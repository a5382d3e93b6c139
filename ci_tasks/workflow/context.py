"""The situation CI would be in: a pull request that carries the label, as GitHub's contexts.

Names and shapes are those of GitHub's "Contexts reference". What only GitHub knows is null: the pull request's number
above all, so that `${{ github.event.pull_request.number || 'non-pr' }}` gives what it gives outside of a pull request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.model import Job, Workflow
from ci_tasks.workflow import secrets

_UNKNOWN_SHA = "0" * 40


@dataclass(frozen=True)
class Situation:
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
    situation: Situation,
    workflow: Workflow,
    job: Job,
    trigger: str | None,
    matrix: Mapping[str, Any],
    index: int,
    total: int,
) -> dict[str, Any]:
    """GitHub's contexts for one row of `job`, as the expression evaluator takes them."""
    return {
        "github": _github(situation, workflow.name, job.id, trigger),
        "env": {},
        "matrix": dict(matrix),
        "inputs": dict(workflow.inputs),
        "secrets": secrets.marks(situation.secrets),
        "needs": {name: {"outputs": dict(situation.outputs.get(name, {})), "result": "success"} for name in job.needs},
        "steps": {},
        "runner": {"os": "Linux", "arch": "X64", "name": "ci-tasks", "temp": "/tmp", "environment": "self-hosted"},
        "vars": {},
        "strategy": {"job-index": index, "job-total": total, "fail-fast": False, "max-parallel": total},
        "job": {"status": "success"},
    }


def _github(situation: Situation, workflow: str, job: str, trigger: str | None) -> dict[str, Any]:
    owner = situation.repository.split("/")[0]
    labels = [{"name": trigger}] if trigger else []
    return {
        "event_name": "pull_request",
        "event": {
            "action": "labeled",
            "pull_request": {
                "number": None,
                "draft": False,
                "labels": labels,
                "head": {"sha": situation.sha, "repo": {"full_name": situation.repository, "fork": False}},
                "base": {"ref": situation.base, "repo": {"full_name": situation.repository}},
            },
            "repository": {"full_name": situation.repository, "owner": {"login": owner}},
        },
        "sha": situation.sha,
        "ref": "refs/pull/0/merge",
        "ref_name": "0/merge",
        "head_ref": "",
        "base_ref": situation.base,
        "repository": situation.repository,
        "repository_owner": owner,
        "workspace": situation.workspace,
        "workflow": workflow,
        "job": job,
        "run_id": "0",
        "run_number": "0",
        "run_attempt": "1",
        "actor": "ci-tasks",
        "triggering_actor": "ci-tasks",
        "server_url": "https://github.com",
        "api_url": "https://api.github.com",
        "token": secrets.marks(situation.secrets).get("GITHUB_TOKEN"),
    }
