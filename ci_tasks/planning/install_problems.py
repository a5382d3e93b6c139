"""Why install steps failed, and the override that would mend it: another index, or another version of a package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from ci_tasks.config import PIP_DEFAULT, Override
from ci_tasks.planning.pip_commands import PipInstall, name_of, pip_installs, specifier_of
from ci_tasks.workflow.model import Job

_NOT_FOUND = re.compile(r"(?:satisfies the requirement|No matching distribution found for) ([^\s;]+)")
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def mending_override(text: str, job: Job, overrides: Sequence[Override]) -> Override | None:
    """The override that would mend what pip says in `text`. None where nothing is known to help, or where the step has
    an override of the person's."""
    not_found = _NOT_FOUND.search(text)
    if not not_found:
        return None
    name, listed = name_of(not_found[1]), _VERSIONS.search(text)
    versions = re.findall(r"[^\s,]+", listed[1]) if listed and listed[1] != "none" else []
    for step in job.steps:
        if any(override.step == step.name and override.job == job.id for override in overrides):
            continue
        for install in pip_installs(step.run or ""):
            requirement = next((each for each in install.requirements if name_of(each) == name), None)
            if requirement is None:
                continue
            if versions and (other := replacement(requirement, versions)):
                return Override(job.id, step.name, replace={requirement: other})
            if install.indexes and not versions:
                return Override(job.id, step.name, pip_index=PIP_DEFAULT)
    return None


def replacement(requirement: str, versions: Iterable[str]) -> str | None:
    """A pinned requirement with a version that there is: the same one of another build, else the newest of the same
    series. None where it is not pinned, or nothing is near."""
    from packaging.version import InvalidVersion, Version

    def parsed(text: str) -> Version | None:
        try:
            return Version(text)
        except InvalidVersion:
            return None

    pinned = re.fullmatch(r"==\s*([\w.+!-]+)", specifier_of(requirement))
    wanted = parsed(pinned[1]) if pinned else None
    known = [version for version in map(parsed, versions) if version]
    if not pinned or wanted is None or wanted in known:
        return None
    same = [version for version in known if version.public == wanted.public]
    series = [version for version in known if version.release[:2] == wanted.release[:2] and not version.is_prerelease]
    best = max(same or series, default=None)
    return requirement.replace(pinned[0], f"=={best}") if best else None


def entry(override: Override) -> str:
    """The override as an entry of hosts.yaml."""
    parts = [f"job: {_scalar(override.job)}", f"step: {_scalar(override.step)}"]
    if override.pip_index:
        parts.append(f"pip_index: {_scalar(override.pip_index)}")
    if override.replace:
        pairs = ", ".join(f"{_scalar(old)}: {_scalar(new)}" for old, new in override.replace.items())
        parts.append(f"replace: {{{pairs}}}")
    return f"{{{', '.join(parts)}}}"


def merged(overrides: Iterable[Override]) -> list[Override]:
    """One entry for each step, with all of its changes."""
    by_step: dict[tuple[str, str], Override] = {}
    for override in overrides:
        before = by_step.get((override.job, override.step))
        by_step[override.job, override.step] = Override(
            override.job,
            override.step,
            pip_index=override.pip_index or (before.pip_index if before else None),
            replace={**(before.replace if before else {}), **override.replace},
        )
    return list(by_step.values())


def install_commands(job: Job) -> list[tuple[str, PipInstall]]:
    """(step's name, command) of every pip command of the job's own scripts."""
    return [(step.name, install) for step in job.steps for install in pip_installs(step.run or "")]


def _scalar(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in ("null", "true", "false"):
        return text
    # JSON writes an emoji as two halves, which YAML does not put together.
    return f'"{"".join(char if ord(char) > 0xFFFF else json.dumps(char)[1:-1] for char in text)}"'
