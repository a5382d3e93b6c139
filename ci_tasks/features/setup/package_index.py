"""Which package index has what install steps name: asked with pip itself, in the environment that jobs get."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import PIP_DEFAULT, Override
from ci_tasks.planning.pip_commands import PipInstall, install_commands, name_of, replacement, specifier_of
from ci_tasks.workflow.model import Job

TIMEOUT = 60.0  # seconds; each connection gets ten
_OPTIONS = ("--disable-pip-version-check", "--retries", "0", "--timeout", "10")
_OWN_INDEX = "pip's own index"

Ask = Callable[[Mapping[str, Sequence[str]], float], Mapping[str, QueryAnswer]]


@dataclass(frozen=True)
class IndexFinding:
    """What one pip command of a step needs here: nothing (`overrides` is empty), overrides, or `problem` if no index
    has it. `torch` is the kind of its wheels, `cpu` or `cuda`, "" if the command installs none."""

    step: str
    text: str
    overrides: tuple[Override, ...] = ()
    problem: bool = False
    torch: str = ""


def mirrors(pip_config: str) -> list[str]:
    """The further indexes in the output of `pip config list`, as other places for a package; none that has a login."""
    addresses: list[str] = []
    for found in re.finditer(r"\.extra-index-url=('.*')", pip_config):
        addresses += str(ast.literal_eval(found[1])).split()
    return [address for address in dict.fromkeys(addresses) if re.match(r"https?://[^@]*$", address)]


def find_indexes(job: Job, indexes: Sequence[str], python: str, ask: Ask) -> list[IndexFinding]:
    """For each pip command of the job: the first of CI's own index, that of pip's configuration and `indexes` that has
    what it names; before them one with wheels of torch for CPUs."""
    findings = []
    for step, install in install_commands(job):
        pinned = [each for each in install.requirements if specifier_of(each).startswith("==")]
        names = list(dict.fromkeys(map(name_of, [*install.requirements[:1], *pinned])))  # a pinned version may be gone
        candidates: list[tuple[str, Sequence[str]]] = [("", install.indexes)]
        candidates += [(PIP_DEFAULT, ())] if install.indexes else []
        candidates += [(index, ("--index-url", index)) for index in indexes]
        found: list[IndexFinding] = []
        for index, options in candidates if names else ():
            queries = {name: [python, "-m", "pip", "index", "versions", *_OPTIONS, *options, name] for name in names}
            versions = {name: parse_versions(answer.out) for name, answer in ask(queries, TIMEOUT).items()}
            if all(versions.values()):
                found.append(_finding(Override(job.id, step, pip_index=index or None), install, versions))
                if found[-1].torch != "cuda":
                    break
        if found:
            findings.append(found[-1] if found[-1].torch == "cpu" else found[0])
        elif names:
            tried = ", ".join(index or _where(install) for index, _ in candidates)
            text = f"no index that was tried has {names[0]} for this Python: {tried}"
            findings.append(IndexFinding(step, text, problem=True))
    return findings


def parse_versions(text: str) -> list[str]:
    """Those of the output of `pip index versions`."""
    listed = re.search(r"^Available versions: (.*)$", text, re.MULTILINE)
    return [version.strip() for version in listed[1].split(",")] if listed else []


def _finding(override: Override, install: PipInstall, versions: Mapping[str, list[str]]) -> IndexFinding:
    changes = {}
    for requirement in install.requirements:
        known = versions.get(name_of(requirement), [])
        if name_of(requirement) == "torch" and 0 < len(_for_cpus(known)) < len(known):
            known = _for_cpus(known)
        if other := replacement(requirement, known):
            changes[requirement] = other
    overrides = [override] if override.pip_index else []
    overrides += [Override(override.job, override.step, replace=changes)] if changes else []
    torch = versions.get("torch", [])
    is_cpu = bool(torch) and (_for_cpus(torch) == torch or any("+cpu" in other for other in changes.values()))
    there = {None: _where(install), PIP_DEFAULT: _OWN_INDEX}.get(override.pip_index, override.pip_index)
    text = f"{next(iter(versions))} from {there}" + "".join(f"; {old} → {new}" for old, new in changes.items())
    if torch and not is_cpu:
        text += "; only CUDA wheels of torch were found"
    return IndexFinding(override.step, text, tuple(overrides), torch="cpu" if is_cpu else "cuda" if torch else "")


def _for_cpus(versions: Sequence[str]) -> list[str]:
    return [version for version in versions if version.endswith("+cpu")]


def _where(install: PipInstall) -> str:
    return " ".join(install.indexes[1::2]) or _OWN_INDEX
