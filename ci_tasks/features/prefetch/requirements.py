"""What the rows of a label will ask the hub for, each once for a host: read from the commands of their tests, in the
words of `hf download`, and from calls of its Python library."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from string import Template
from typing import NoReturn

from ci_tasks.agent.docker_argv import DockerRun
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config, HostSpec
from ci_tasks.features.prefetch.hub import DATASET, MAIN, MODEL, HubRepository
from ci_tasks.features.recorder.record import LaunchRecorder
from ci_tasks.features.recorder.syntax import UNKNOWN, LaunchCall, Recording, Value, commands_in, shell_split
from ci_tasks.features.suites.slime_helpers import DATASETS, commands_of
from ci_tasks.planning.containers import HostPath, container_of, environment_of, place
from ci_tasks.planning.steps import plan_steps
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.find_rows import JobRows
from ci_tasks.workflow import rows as workflow_rows
from ci_tasks.workflow import secrets
from ci_tasks.workflow.model import Row

_HIDDEN = re.compile(r"\b(?:hf|huggingface-cli)\s+download\b|snapshot_download|hf_hub_download")
_PROGRAM = re.compile(r"hf|huggingface-cli|huggingface_hub\.(?:cli\.hf|commands\.huggingface_cli)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BEFORE = re.compile(r"env|sudo|time|exec|command|nohup|!|then|do|if|\(|\{|-.*|python[\d.]*")
_REDIRECTION = re.compile(r"\d*(?:>>?|<).*", re.DOTALL)
_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_CALLS = ("huggingface_hub.snapshot_download", "huggingface_hub.hf_hub_download")
_SHELL = re.compile(r"(?:\S*/)?(?:ba)?sh")


class UnresolvedArgument(Exception):
    """It downloads something, and the words do not say what."""


@dataclass(frozen=True)
class Unresolved:
    """A download that a test does not settle: its place in the test, its words, why, and the rows that run it."""

    where: str
    text: str
    why: str
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelRequirements:
    """What all rows ask for with its place on the host, and what stays open: each with the rows, and the places in
    their tests. `runs` has the container and the environment of each row."""

    repositories: dict[tuple[HubRepository, HostPath], list[tuple[str, str]]]
    unresolved: dict[Unresolved, list[str]]
    runs: dict[str, tuple[DockerRun | None, Mapping[str, str]]]


def label_requirements(
    source: CheckoutSource,
    config: Config,
    job_rows: JobRows,
    rows: Sequence[Row],
    spec: HostSpec,
    recorder: LaunchRecorder,
) -> LabelRequirements:
    """What `rows` will ask for on a host. `recorder` has the tree that will run."""
    found = LabelRequirements({}, {}, {})
    for row in rows:
        if not row.test:
            continue
        resolve = workflow_rows.row_resolver(source.workflow, job_rows.job, row, job_rows.context)
        run = container_of(job_rows.job, resolve, plan_steps(job_rows.job, resolve, config.overrides))
        env = environment_of(run, spec, {name: secrets.shown(value) for name, value in row.env.items()})
        found.runs[row.row] = run, env
        recording = recorder.record(row.test, shell_split(row.args), env)
        for where, asked in requirements_of(recording, env, row.test):
            if isinstance(asked, Unresolved):
                found.unresolved.setdefault(asked, []).append(row.row)
            else:
                key = asked, place(asked.directory, run, spec, env)
                found.repositories.setdefault(key, []).append((row.row, where))
    return found


def requirements_of(
    recording: Recording, env: Mapping[str, str], test: str
) -> Iterator[tuple[str, HubRepository | Unresolved]]:
    """What one test asks for, in its order, each with its place in the test. What it does after it stopped is
    unresolved."""
    for why in recording.stops:
        yield test, Unresolved(test, test, f"not read further: {why}")
    for call in recording.calls:
        where, given = call.place or test, {**env, **call.env}
        asked: list[tuple[str, Callable[[], HubRepository | None]]]
        asked = [(call.function, partial(downloaded_by_library, call, given))]
        commands = [argv for outer in commands_of(call) for argv in _inner_commands(outer)]
        asked += [(" ".join(argv), partial(_by_command, argv, given)) for argv in commands]
        for text, download in asked:
            try:
                if repository := download():
                    yield where, repository
            except UnresolvedArgument as problem:
                yield where, Unresolved(where, text, str(problem))


def _by_command(argv: Sequence[str], env: Mapping[str, str]) -> HubRepository | None:
    if repository := downloaded_by_command(argv, env):
        return repository
    if _HIDDEN.search(" ".join(argv)):
        raise UnresolvedArgument("another program starts it, and its arguments are not read")
    if argv and argv[0].startswith("⟨"):
        raise UnresolvedArgument(f"unknown program: {argv[0]}")
    return None


def _inner_commands(argv: Sequence[str]) -> list[list[str]]:
    """The commands of a `bash -c TEXT`; of another program its own words."""
    if len(argv) > 2 and _SHELL.fullmatch(argv[0]) and re.fullmatch("-[a-z]*c", argv[1]):
        return commands_in(argv[2])
    return [list(argv)]


# -- the words of a command, the arguments of a call -------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """The options of `hf download` and of the older huggingface-cli."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("words", nargs="*")
        self.add_argument("--repo-type", "--type", default=MODEL)
        self.add_argument("--revision", "-r", default=MAIN)
        where = ("--cache-dir", "--local-dir", "--local-dir-use-symlinks")
        for name in ("--include", "--exclude", *where, "--max-workers", "--token", "--endpoint"):
            self.add_argument(name)

    def error(self, message: str) -> NoReturn:
        raise UnresolvedArgument(message)


def downloaded_by_command(argv: Sequence[str], env: Mapping[str, str]) -> HubRepository | None:
    """What the words of one command download, in the environment `env`; None for another command. Raises
    UnresolvedArgument."""
    own = dict(env)
    for at, word in enumerate(argv):
        name = word.rpartition("/")[2]
        if _PROGRAM.fullmatch(name):
            return _parsed(argv[at + 2 :], own) if argv[at + 1 : at + 2] == ["download"] else None
        if assigned := _ASSIGNMENT.fullmatch(word):
            own[assigned[1]] = assigned[2]
        elif not _BEFORE.fullmatch(name):
            return None
    return None


def _parsed(words: Sequence[str], env: Mapping[str, str]) -> HubRepository:
    own = takewhile(lambda word: not _REDIRECTION.fullmatch(word), words)
    given, _ = _Parser().parse_known_intermixed_args([_expanded(word, env) for word in own])
    if not given.words:
        raise UnresolvedArgument("it names no repository")
    id, *files = given.words
    is_part = bool(files or given.include or given.exclude)
    return _repository(given.repo_type, id, given.local_dir, given.cache_dir or _cache(env), given.revision, is_part)


def downloaded_by_library(call: LaunchCall, env: Mapping[str, str]) -> HubRepository | None:
    """What a call of huggingface_hub downloads; None for one that does not, or that only reads existing files. Raises
    UnresolvedArgument."""
    given = call.kwargs
    if call.function == "hf_download_dataset":
        name = _text(given.get("full_name"))
        return HubRepository(DATASET, name, f"{DATASETS}/{name.rpartition('/')[2]}")
    if call.target not in _CALLS or given.get("local_files_only") is True:
        return None
    local, cache, revision, kind = map(_text, map(given.get, ("local_dir", "cache_dir", "revision", "repo_type")))
    id = _text(call.args[0] if call.args else given.get("repo_id"))
    is_part = call.target != _CALLS[0] or bool(given.get("allow_patterns") or given.get("ignore_patterns"))
    return _repository(kind or MODEL, id, local, cache or _cache(env), revision, is_part)


def _repository(kind: str, id: str, local: str, cache: str, revision: str, is_part: bool) -> HubRepository:
    if kind not in (MODEL, DATASET) or is_part:
        raise UnresolvedArgument(f"{'a part of it' if is_part else kind}: only whole models and datasets are fetched")
    if not _ID.fullmatch(id) or id.startswith(".") or ".." in id:
        raise UnresolvedArgument(f"{id!r} is no repository's id")
    return HubRepository(kind, id, local or cache, not local, revision or MAIN)


def _expanded(word: str, env: Mapping[str, str]) -> str:
    try:
        return Template(_text(word)).substitute({"HOME": "~", **env})
    except (KeyError, ValueError):
        raise UnresolvedArgument(f"{word} is not in the row's environment") from None


def _cache(env: Mapping[str, str]) -> str:
    """Where the hub's library keeps what it is told no directory for; `~` is the home of the test's account."""
    return (env.get("HF_HUB_CACHE") or posixpath.join(env.get("HF_HOME") or "~/.cache/huggingface", "hub")).rstrip("/")


def _text(value: Value) -> str:
    """The text, "" for None. Raises UnresolvedArgument."""
    if value is not None and not isinstance(value, str):
        raise UnresolvedArgument(f"{value!r} is no text")
    if unknown := UNKNOWN.search(value or ""):
        raise UnresolvedArgument(f"{unknown[0]} is not known")
    return value or ""
