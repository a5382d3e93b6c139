"""A repository of a model hub, as a test names it: in the words of `hf download`, or in a call of a Python library."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NoReturn

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.recorder.records import UNKNOWN, LaunchCall, Value

MODEL, DATASET = "model", "dataset"
MAIN = "main"
_PROGRAM = re.compile(r"hf|huggingface-cli|huggingface_hub\.(?:cli\.hf|commands\.huggingface_cli)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BEFORE = re.compile(r"env|sudo|time|exec|command|nohup|!|then|do|if|\(|\{|-.*|python[\d.]*")
_REDIRECTION = re.compile(r"\d*(?:>>?|<).*", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_CALLS = ("huggingface_hub.snapshot_download", "huggingface_hub.hf_hub_download")


class UnresolvedArgument(Exception):
    """It downloads something, and the words do not say what."""


@dataclass(frozen=True)
class HubRepository:
    """A repository, and the directory that the test has it in, as the test names it. Files lie there as in the
    repository, or `in_cache` as in the hub's own cache."""

    kind: str
    id: str
    directory: str
    in_cache: bool = False
    revision: str = MAIN

    @property
    def name(self) -> str:
        """Unlike for a model and a dataset of one id."""
        return f"{self.id} (dataset)" if self.kind == DATASET else self.id

    @property
    def folder(self) -> str:
        """Its directory in the hub's cache."""
        return "--".join([f"{self.kind}s", *self.id.split("/")])


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
    """What a call of huggingface_hub downloads; None for one that does not, or that only reads what is there. Raises
    UnresolvedArgument."""
    given = call.kwargs
    if call.target not in _CALLS or given.get("local_files_only") is True:
        return None
    local, cache, revision, kind = (
        _text(given.get(key)) for key in ("local_dir", "cache_dir", "revision", "repo_type")
    )
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
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in env and name != "HOME":
            raise UnresolvedArgument(f"{match[0]} is not in the row's environment")
        return env.get(name, "~")

    return _VARIABLE.sub(value, _text(word))


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
