"""Which package index has what install steps name: asked with pip itself, in the environment that jobs get."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import PIP_DEFAULT, Override
from ci_tasks.planning.pip_commands import PipInstall, install_commands, merged, name_of, replacement, specifier_of
from ci_tasks.workflow.model import Job

PIP_TIMEOUT = 60.0  # seconds; each connection gets ten
_OPTIONS = ("--disable-pip-version-check", "--retries", "0", "--timeout", "10")
_CONFIGURED = re.compile(r"\.extra-index-url=(.*)")
_AVAILABLE = re.compile(r"^Available versions: (.*)$", re.MULTILINE)
_OWN_INDEX = "pip's own index"

Ask = Callable[[Mapping[str, Sequence[str]], float], Mapping[str, QueryAnswer]]


@dataclass(frozen=True)
class IndexFinding:
    """What one pip command of a step needs here: nothing (`overrides` is empty), overrides, or `problem` if no index
    has it."""

    step: str
    text: str
    overrides: tuple[Override, ...] = ()
    problem: str = ""


def remembered(ask: Ask) -> Ask:
    """The same, but no question is put twice: labels share most of their install steps."""
    answers: dict[tuple[str, ...], QueryAnswer] = {}

    def ask_once(questions: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        new = {name: argv for name, argv in questions.items() if tuple(argv) not in answers}
        for name, answer in (ask(new, timeout) if new else {}).items():
            answers[tuple(new[name])] = answer
        return {name: answers[tuple(argv)] for name, argv in questions.items()}

    return ask_once


def pip_works(python: str, ask: Ask) -> bool:
    return ask({"pip": [python, "-m", "pip", "--version"]}, PIP_TIMEOUT)["pip"].code == 0


def mirrors(python: str, ask: Ask) -> list[str]:
    """The further indexes of pip's own configuration that another address could stand for."""
    return parse_mirrors(ask({"config": [python, "-m", "pip", "config", "list"]}, PIP_TIMEOUT)["config"].out)


def parse_mirrors(text: str) -> list[str]:
    """Those of the output of `pip config list`; one with a login stays where it is."""
    addresses: list[str] = []
    for found in _CONFIGURED.finditer(text):
        try:
            addresses += str(ast.literal_eval(found[1])).split()
        except (ValueError, SyntaxError):
            continue
    return [address for address in dict.fromkeys(addresses) if re.match(r"https?://[^@]*$", address)]


def find_indexes(job: Job, indexes: Sequence[str], python: str, ask: Ask) -> list[IndexFinding]:
    """For each pip command of the job: the first of CI's own index, that of pip's configuration and `indexes` that has
    what it names."""
    return [
        _find_index(job.id, step, install, names, indexes, python, ask)
        for step, install in install_commands(job)
        if (names := _asked(install))
    ]


def overrides_of(findings: Sequence[IndexFinding]) -> list[Override]:
    return merged(override for finding in findings for override in finding.overrides)


def _find_index(
    job: str,
    step: str,
    install: PipInstall,
    names: Sequence[str],
    indexes: Sequence[str],
    python: str,
    ask: Ask,
) -> IndexFinding:
    where = " ".join(install.indexes[1::2]) or _OWN_INDEX
    candidates: list[tuple[str, list[str]]] = [("", [*install.indexes])]
    candidates += [(PIP_DEFAULT, [])] if install.indexes else []
    candidates += [(index, ["--index-url", index]) for index in indexes]
    for index, options in candidates:
        found = _versions(names, options, python, ask)
        if not all(found.values()):
            continue
        overrides = [Override(job, step, pip_index=index)] if index else []
        changes = {
            requirement: other
            for requirement in install.requirements
            if (other := replacement(requirement, found.get(name_of(requirement), ())))
        }
        overrides += [Override(job, step, replace=changes)] if changes else []
        return IndexFinding(step, _text(where, index, names[0], changes), tuple(overrides))
    tried = ", ".join(index or where for index, _ in candidates)
    return IndexFinding(step, "", problem=f"no index that was tried has {names[0]} for this Python: {tried}")


def _text(where: str, index: str, name: str, changes: Mapping[str, str]) -> str:
    other = f"; {', '.join(f'{old} → {new}' for old, new in changes.items())}" if changes else ""
    if not index:
        return f"{where} has {name}{other}"
    there = _OWN_INDEX if index == PIP_DEFAULT else index
    return f"{where} does not give {name} here, but {there} does{other}"


def _asked(install: PipInstall) -> list[str]:
    """The packages to ask for: the first one, and those of one version, which may be gone."""
    pinned = [name_of(each) for each in install.requirements if specifier_of(each).startswith("==")]
    return list(dict.fromkeys([*(name_of(each) for each in install.requirements[:1]), *pinned]))


def _versions(names: Sequence[str], options: Sequence[str], python: str, ask: Ask) -> dict[str, list[str]]:
    """The versions of each package that pip finds with these options."""
    queries = {name: [python, "-m", "pip", "index", "versions", *_OPTIONS, *options, name] for name in names}
    return {name: parse_versions(answer.out) for name, answer in ask(queries, PIP_TIMEOUT).items()}


def parse_versions(text: str) -> list[str]:
    """Those of the output of `pip index versions`."""
    listed = _AVAILABLE.search(text)
    return [version.strip() for version in listed[1].split(",")] if listed else []
