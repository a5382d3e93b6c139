"""A command line that downloads from the hub → what it downloads: `hf download`, and the older `huggingface-cli`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ci_tasks.suites.prefetch.wants import CACHE, FILES, KINDS, MAIN, MODEL, Repository
from ci_tasks.suites.reading.values import Partly, Text

_PROGRAMS = frozenset({"hf", "huggingface-cli"})
# The command line as a module: `python -m huggingface_hub.cli.hf download …`
_MODULES = re.compile(r"huggingface_hub\.(?:cli\.hf|commands\.huggingface_cli)")
_VALUED = frozenset(
    ["--repo-type", "--revision", "--include", "--exclude", "--cache-dir", "--local-dir", "--token", "--max-workers"]
    + ["--local-dir-use-symlinks", "--format", "--endpoint", "--type"]
)
_SHORT = {"-r": "--revision", "-t": "--token"}
_LISTS = ("--include", "--exclude")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BEFORE = frozenset({"env", "sudo", "time", "exec", "command", "nohup", "!", "then", "do", "if", "(", "{"})
_REDIRECTION = re.compile(r"\d*(?:>>?|<)(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}]*))?\})")
_URI = re.compile(r"hf://(?:(models|datasets)/)?([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?")
_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_CACHES = (
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
)
HUB_CACHE = "~/.cache/huggingface/hub"


class NotKnown(Exception):
    """It downloads something, and the words do not say what."""


@dataclass
class _Given:
    options: dict[str, list[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def last(self, flag: str) -> str | None:
        values = self.options.get(flag)
        return values[-1] if values else None


def is_download(words: Sequence[Text]) -> bool:
    """Whether the words of one command are those of a download."""
    return _arguments(words) is not None


def repository(words: Sequence[Text], env: Mapping[str, str], conditions: tuple[str, ...] = ()) -> Repository:
    """What a download's words ask for; `env` is the environment that they are run in. Raises NotKnown."""
    found = _arguments(words)
    assert found is not None
    set_before, rest = found
    env = {**env, **set_before}
    given = _given([_expanded(word, env) for word in rest])
    if not given.words:
        raise NotKnown("it names no repository")
    kind, id, revision, path = _named(given)
    files = [*([path] if path else []), *given.words[1:]]
    include = files or given.options.get("--include", [])
    return Repository(
        kind=kind,
        id=id,
        directory=_directory(given, env),
        layout=FILES if given.last("--local-dir") else CACHE,
        revision=revision,
        include=tuple(include),
        exclude=() if files else tuple(given.options.get("--exclude", [])),
        conditions=conditions,
    )


def cache_directory(env: Mapping[str, str]) -> str:
    """Where the hub's library keeps what it is told no directory for; `~` is the home of whoever runs the test."""
    for name, below in _CACHES:
        if env.get(name):
            return posixpath.join(env[name], below) if below else env[name]
    return HUB_CACHE


def is_id(text: str) -> bool:
    """Whether it can be a repository's id, and not a path."""
    return bool(_ID.fullmatch(text)) and not text.startswith(".") and ".." not in text


def _arguments(words: Sequence[Text]) -> tuple[dict[str, str], list[Text]] | None:
    """The variables set for the command, and the words behind `download`; None for another command."""
    env: dict[str, str] = {}
    for at, word in enumerate(words):
        if not isinstance(word, str):
            return None
        name = word.rpartition("/")[2]
        assigned = _ASSIGNMENT.fullmatch(word)
        if name in _PROGRAMS or _MODULES.fullmatch(word):
            behind = list(words[at + 1 :])
            # hf has options of its own before the subcommand
            while behind and isinstance(behind[0], str) and behind[0].startswith("-"):
                behind.pop(0)
            return (env, behind[1:]) if behind[:1] == ["download"] else None
        if assigned:
            env[assigned[1]] = assigned[2]
        elif not (name in _BEFORE or word.startswith("-") or re.fullmatch(r"python[\d.]*", name)):
            return None
    return None


def _expanded(word: Text, env: Mapping[str, str]) -> str:
    if isinstance(word, Partly):
        hole = word.holes[0]
        raise NotKnown(f"{hole.text} (line {hole.line}): {hole.why}")

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name in env:
            return env[name]
        if found[3] is not None:
            return found[3]
        if name == "HOME":
            return "~"
        raise NotKnown(f"{found[0]} is not in the row's environment")

    return _VARIABLE.sub(value, word)


def _given(words: Sequence[str]) -> _Given:
    found, flag, waiting = _Given(), "", False
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if redirected := _REDIRECTION.fullmatch(word):
            at += 0 if redirected[1] else 1
        elif word.startswith("-") and len(word) > 1:
            name, equals, value = word.partition("=")
            flag = _SHORT.get(name, name)
            found.options.setdefault(flag, [])
            waiting = flag in _VALUED and not equals
            if equals:
                found.options[flag].append(value)
        elif waiting:
            found.options[flag].append(word)
            waiting = False
        elif flag in _LISTS and found.words and any(mark in word for mark in "*?["):
            found.options[flag].append(word)  # older ones take several patterns behind one flag
        else:
            found.words.append(word)
    return found


def _named(given: _Given) -> tuple[str, str, str, str]:
    """Kind, id, revision, and a path below, which a URI may have."""
    name = given.words[0]
    kind = given.last("--repo-type") or given.last("--type") or MODEL
    revision = given.last("--revision") or MAIN
    if uri := _URI.fullmatch(name):
        return (uri[1] or "models").removesuffix("s"), uri[2], uri[3] or MAIN, uri[4] or ""
    if kind not in KINDS:
        raise NotKnown(f"repositories of the type {kind} are not fetched ahead")
    if not is_id(name):
        raise NotKnown(f"{name!r} is no repository's id")
    return kind, name, revision, ""


def _directory(given: _Given, env: Mapping[str, str]) -> str:
    return given.last("--local-dir") or given.last("--cache-dir") or cache_directory(env)
