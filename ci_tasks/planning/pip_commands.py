"""The pip commands of a step's script: what they install, from which index; the script with another one; and the
override that helps if they failed: another index, or another version of a package."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import PIP_DEFAULT, Override
from ci_tasks.workflow.model import Job

# Up to the command's end; a backslash continues the line.
_COMMAND = re.compile(r"\b(?:pip[0-9.]*|uv[ \t]+pip)[ \t]+(?:install|download|wheel)\b((?:\\\n|[^\n;&|])*)")
_VALUE = r"""(?:\$\{\{.*?\}\}|"[^"\n]*"|'[^'\n]*'|[^\s"'])+"""
_INDEX = re.compile(rf"(?<=\s)(--(?:extra-)?index-url|--default-index|--index|-i)([= ]\s*)({_VALUE})")
# Options whose value is another word.
_WITH_VALUE = (
    *("-c", "-C", "-e", "-f", "-i", "-r", "-t", "--constraint", "--config-settings", "--editable", "--find-links"),
    *("--index-url", "--extra-index-url", "--requirement", "--target", "--index", "--default-index", "--prefix"),
    *("--root", "--no-binary", "--only-binary", "--trusted-host", "--timeout"),
)
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*([=<>!~][^;@]*)?(?:;.*)?")


@dataclass(frozen=True)
class PipInstall:
    """One command. `indexes` are the options that name an index, as words; `requirements` what it names itself."""

    indexes: tuple[str, ...]
    requirements: tuple[str, ...]


def pip_installs(script: str) -> list[PipInstall]:
    texts = [found[1] for found in _COMMAND.finditer(script)]
    return [PipInstall(tuple(_index_words(text)), tuple(_requirements(text))) for text in texts]


def uses_pip(script: str) -> bool:
    return _COMMAND.search(script) is not None


def with_index(script: str, index: str) -> tuple[str, list[tuple[str, str]]]:
    """The script with another index, and each option that differs, before and after. `default` leaves it to pip's own
    configuration."""
    changes: list[tuple[str, str]] = []

    def option(found: re.Match[str]) -> str:
        after = "" if index == PIP_DEFAULT else f"{found[1]}{found[2]}{shlex.quote(index)}"
        if after != found[0]:
            changes.append((found[0], after or "pip's own index"))
        return after

    def command(found: re.Match[str]) -> str:
        return re.sub(r"[ \t]+$", "", _INDEX.sub(option, found[0]), flags=re.MULTILINE)

    return _COMMAND.sub(command, script), changes


def name_of(requirement: str) -> str:
    """The package of a requirement; "" for a path, a URL or a text with variables."""
    found = _NAME.fullmatch(requirement)
    return found[1] if found else ""


def specifier_of(requirement: str) -> str:
    """Its versions, such as `==2.9.1+cu128`; "" for any."""
    found = _NAME.fullmatch(requirement)
    return (found[2] or "").strip() if found else ""


def _index_words(arguments: str) -> Iterator[str]:
    for found in _INDEX.finditer(arguments):
        yield from (found[1], found[3].strip("\"'"))


def _requirements(arguments: str) -> Iterator[str]:
    text = re.sub(r"\\\n|\$\{\{.*?\}\}", " ", arguments)
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # a quote that opens before the command
        words = re.sub("[\"']", " ", text).split()
    follows = False
    for word in words:
        if not follows and not word.startswith("-") and ">" not in word[:2] and name_of(word):
            yield word
        follows = not follows and word in _WITH_VALUE


# -- commands that failed ----------------------------------------------------------------------------------------------

_NOT_FOUND = re.compile(r"(?:satisfies the requirement|No matching distribution found for) ([^\s;]+)")
_ASKED_BY = re.compile(r"satisfies the requirement \S+ \(from (?!versions:)(?:[^()]*->)?([^()>]+)\)")
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_UNLIKE_JSON = re.compile("[\x7f-\xa0\u2028\u2029\ufeff]")  # as YAML reads them


def suggested_override(text: str, job: Job, overrides: Sequence[Override]) -> Override | None:
    """The override that would fix what pip says in `text`. None if nothing is known to help, or if the step has an
    override of the person's."""
    not_found = _NOT_FOUND.search(text)
    if not not_found:
        return None
    name, listed = name_of(not_found[1]), _VERSIONS.search(text)
    versions = re.findall(r"[^\s,]+", listed[1]) if listed and listed[1] != "none" else []
    if (asked_by := _ASKED_BY.search(text)) and not versions:  # of a package that a requirement of the step needs
        name = name_of(asked_by[1])
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
    series. None if it is not pinned, or nothing is near."""
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
    keys = {name: getattr(override, name) for name in ("job", "step", "pip_index", "replace")}
    text = ", ".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items() if value)
    return _UNLIKE_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", f"{{{text}}}")


def merged(overrides: Iterable[Override]) -> list[Override]:
    """One entry for each step, with all of its changes."""
    by_step: dict[tuple[str, str], Override] = {}
    for each in overrides:
        before = by_step.get((each.job, each.step), each)
        index, parts = each.pip_index or before.pip_index, {**before.replace, **each.replace}
        by_step[each.job, each.step] = replace(each, pip_index=index, replace=parts)
    return list(by_step.values())


def install_commands(job: Job) -> list[tuple[str, PipInstall]]:
    """(step's name, command) of every pip command of the job's own scripts."""
    return [(step.name, install) for step in job.steps for install in pip_installs(step.run or "")]
