"""The pip commands of a step's script: what they install, from which index; and the script with another one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import PIP_DEFAULT

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
