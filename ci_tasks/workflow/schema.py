"""Every key of GitHub's workflow syntax, and what becomes of it here.

From "Workflow syntax for GitHub Actions" and SchemaStore's github-workflow.json. `<id>` stands for any name, `[]` for
an item of a list. A key without keys below it, such as `env` or `concurrency`, stands for whatever is below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import NamedTuple

from ci_tasks.yaml_lines import Map


class Treatment(Enum):
    SUPPORTED = "supported"
    REFUSED = "refused"  # a job that has it is an error before anything runs
    WITHOUT_EFFECT = "without effect"  # a deviation
    TEXT = "text"  # for people: nothing runs otherwise because of it


class KeySpec(NamedTuple):
    treatment: Treatment
    why: str = ""


class FoundKey(NamedTuple):
    """A key of a workflow file: its path in the schema, what becomes of it (None if it is unknown), and its line.
    `valid` are the keys that it could be."""

    path: str
    spec: KeySpec | None
    name: str
    line: int
    valid: tuple[str, ...]


_SUPPORTED = KeySpec(Treatment.SUPPORTED)
_TEXT = KeySpec(Treatment.TEXT)


def _refused(why: str) -> KeySpec:
    return KeySpec(Treatment.REFUSED, why)


def _without_effect(why: str) -> KeySpec:
    return KeySpec(Treatment.WITHOUT_EFFECT, why)


_PERMISSIONS = _without_effect("a token has the permissions that it was made with")
_CONCURRENCY = _without_effect("every row that is asked for runs")
_BY_NAME = _without_effect("the row was asked for by name")

_DEFAULTS = {"defaults.run.shell": _SUPPORTED, "defaults.run.working-directory": _SUPPORTED}
_INPUT = {
    **dict.fromkeys(("type", "default"), _SUPPORTED),
    **dict.fromkeys(("required", "description"), _TEXT),
}
_STEP = {
    **dict.fromkeys(("id", "if", "name", "uses", "run", "working-directory", "shell", "with", "env"), _SUPPORTED),
    **dict.fromkeys(("continue-on-error", "timeout-minutes"), _SUPPORTED),
    **dict.fromkeys(("background", "wait", "wait-all", "cancel", "parallel"), _refused("steps run one after another")),
}
_CONTAINER = {
    **dict.fromkeys(("image", "env", "volumes", "options"), _SUPPORTED),
    "credentials": _without_effect("docker's own login on this host counts"),
    "ports": _without_effect("nothing outside is to reach the job"),
}
_JOB = {
    **dict.fromkeys(("needs", "if", "runs-on.labels", "outputs", "env"), _SUPPORTED),
    **dict.fromkeys(("timeout-minutes", "continue-on-error", "strategy.matrix"), _SUPPORTED),
    "name": _TEXT,
    "runs-on.group": _without_effect("the row runs on the host that was asked for"),
    "permissions": _PERMISSIONS,
    "environment": _without_effect("its approval, variables and secrets are not asked for"),
    "concurrency": _CONCURRENCY,
    **_DEFAULTS,
    **{f"steps.[].{key}": spec for key, spec in _STEP.items()},
    "strategy.fail-fast": _without_effect("only --fail-fast cancels other rows"),
    "strategy.max-parallel": _without_effect("--jobs and the GPUs decide how many rows run at once"),
    **{f"container.{key}": spec for key, spec in _CONTAINER.items()},
    "services": _refused("service containers are not supported"),
    **dict.fromkeys(("uses", "with", "secrets"), _refused("reusable workflows are not supported")),
    "snapshot": _without_effect("no image is made"),
}
_OTHER_EVENTS = (
    *("branch_protection_rule", "check_run", "check_suite", "create", "delete", "deployment", "deployment_status"),
    *("discussion", "discussion_comment", "fork", "gollum", "image_version", "issue_comment", "issues", "label"),
    *("merge_group", "milestone", "page_build", "project", "project_card", "project_column", "public"),
    *("pull_request_comment", "pull_request_review", "pull_request_review_comment", "push", "registry_package"),
    *("release", "repository_dispatch", "schedule", "status", "watch", "workflow_run"),
)
_BY_HAND = ("workflow_call", "workflow_dispatch")
KEYS = {
    **dict.fromkeys(("name", "run-name"), _TEXT),
    # Rows run as for a pull request that was labelled.
    **{
        f"on.{event}.{key}": _SUPPORTED if key == "types" else _BY_NAME
        for event in ("pull_request", "pull_request_target")
        for key in ("types", "branches", "branches-ignore", "tags", "tags-ignore", "paths", "paths-ignore")
    },
    **{f"on.{event}": _without_effect("rows run as for a pull request") for event in _OTHER_EVENTS},
    **{f"on.{event}.inputs.<id>.{key}": spec for event in _BY_HAND for key, spec in _INPUT.items()},
    **{f"on.workflow_dispatch.inputs.<id>.{key}": _TEXT for key in ("options", "deprecationMessage")},
    "on.workflow_call.outputs": _without_effect("nobody calls the workflow"),
    "on.workflow_call.secrets": _SUPPORTED,
    "env": _SUPPORTED,
    "permissions": _PERMISSIONS,
    "concurrency": _CONCURRENCY,
    **_DEFAULTS,
    **{f"jobs.<id>.{key}": spec for key, spec in _JOB.items()},
}


def find(path: str) -> KeySpec | None:
    """What becomes of the key at a path of the schema; None for one that the table does not have."""
    at = ""
    for part in path.split("."):
        valid = children(at)
        if at and not valid:
            break
        if part not in valid and "<id>" not in valid:
            return None
        at = f"{at}.{part if part in valid else '<id>'}".lstrip(".")
    return KEYS.get(at, _SUPPORTED)


def children(path: str) -> tuple[str, ...]:
    """The keys that may stand right below a path of the table; none where it has no more to say."""
    return _children().get(path, ())


def walk(body: Map, path: str = "") -> Iterator[FoundKey]:
    """The keys below a mapping that stands at `path` of the table, each before those below it."""
    valid = children(path)
    for name in body if valid else ():
        part = "<id>" if "<id>" in valid else name
        at = f"{path}.{part}".lstrip(".")
        yield FoundKey(at, find(at), name, body.lines[name], valid)
        value = body[name]
        if isinstance(value, Map):
            yield from walk(value, at)
        for item in value if isinstance(value, list) else ():
            if isinstance(item, Map):
                yield from walk(item, f"{at}.[]")


@cache
def _children() -> dict[str, tuple[str, ...]]:
    below: dict[str, dict[str, None]] = {}
    for path in KEYS:
        parts = path.split(".")
        for length in range(len(parts)):
            below.setdefault(".".join(parts[:length]), {})[parts[length]] = None
    return {path: tuple(keys) for path, keys in below.items()}
