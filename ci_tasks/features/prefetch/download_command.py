"""A command line that downloads from the hub → what it downloads: `hf download`, and the older `huggingface-cli`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.prefetch.repositories import CACHE, FILES, KINDS, MAIN, MODEL, HubRepository
from ci_tasks.features.recorder.records import UNKNOWN

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


class UnresolvedArgument(Exception):
    """It downloads something, and the words do not say what."""


@dataclass
class _ParsedOptions:
    options: dict[str, list[str]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)

    def last(self, flag: str) -> str | None:
        values = self.options.get(flag)
        return values[-1] if values else None


def is_download(argv: Sequence[str]) -> bool:
    """Whether the words of one command are those of a download."""
    return _arguments(argv) is not None


def repository(argv: Sequence[str], env: Mapping[str, str]) -> HubRepository:
    """What a download's words ask for; `env` is the environment that they are run in. Raises NotKnown."""
    command = _arguments(argv)
    assert command is not None
    set_before, rest = command
    env = {**env, **set_before}
    parsed = _parse_options([_expanded(word, env) for word in rest])
    if not parsed.arguments:
        raise UnresolvedArgument("it names no repository")
    kind, id, revision, path = _repository_name(parsed)
    files = [*([path] if path else []), *parsed.arguments[1:]]
    include = files or parsed.options.get("--include", [])
    return HubRepository(
        kind=kind,
        id=id,
        directory=_directory(parsed, env),
        layout=FILES if parsed.last("--local-dir") else CACHE,
        revision=revision,
        include=tuple(include),
        exclude=() if files else tuple(parsed.options.get("--exclude", [])),
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


def _arguments(argv: Sequence[str]) -> tuple[dict[str, str], list[str]] | None:
    """The variables set for the command, and the words behind `download`; None for another command."""
    env: dict[str, str] = {}
    for at, word in enumerate(argv):
        name = word.rpartition("/")[2]
        assigned = _ASSIGNMENT.fullmatch(word)
        if name in _PROGRAMS or _MODULES.fullmatch(word):
            behind = list(argv[at + 1 :])
            # hf has options of its own before the subcommand
            while behind and behind[0].startswith("-"):
                behind.pop(0)
            return (env, behind[1:]) if behind[:1] == ["download"] else None
        if assigned:
            env[assigned[1]] = assigned[2]
        elif not (name in _BEFORE or word.startswith("-") or re.fullmatch(r"python[\d.]*", name)):
            return None
    return None


def _expanded(word: str, env: Mapping[str, str]) -> str:
    if unknown := UNKNOWN.search(word):
        raise UnresolvedArgument(f"{unknown[0]} is not known")

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name in env:
            return env[name]
        if match[3] is not None:
            return match[3]
        if name == "HOME":
            return "~"
        raise UnresolvedArgument(f"{match[0]} is not in the row's environment")

    return _VARIABLE.sub(value, word)


def _parse_options(arguments: Sequence[str]) -> _ParsedOptions:
    parsed, flag, waiting = _ParsedOptions(), "", False
    at = 0
    while at < len(arguments):
        word, at = arguments[at], at + 1
        if redirected := _REDIRECTION.fullmatch(word):
            at += 0 if redirected[1] else 1
        elif word.startswith("-") and len(word) > 1:
            name, equals, value = word.partition("=")
            flag = _SHORT.get(name, name)
            parsed.options.setdefault(flag, [])
            waiting = flag in _VALUED and not equals
            if equals:
                parsed.options[flag].append(value)
        elif waiting:
            parsed.options[flag].append(word)
            waiting = False
        elif flag in _LISTS and parsed.arguments and any(mark in word for mark in "*?["):
            parsed.options[flag].append(word)  # older ones take several patterns behind one flag
        else:
            parsed.arguments.append(word)
    return parsed


def _repository_name(parsed: _ParsedOptions) -> tuple[str, str, str, str]:
    """Kind, id, revision, and a path below, which a URI may have."""
    name = parsed.arguments[0]
    kind = parsed.last("--repo-type") or parsed.last("--type") or MODEL
    revision = parsed.last("--revision") or MAIN
    if uri := _URI.fullmatch(name):
        return (uri[1] or "models").removesuffix("s"), uri[2], uri[3] or MAIN, uri[4] or ""
    if kind not in KINDS:
        raise UnresolvedArgument(f"repositories of the type {kind} are not fetched ahead")
    if not is_id(name):
        raise UnresolvedArgument(f"{name!r} is no repository's id")
    return kind, name, revision, ""


def _directory(parsed: _ParsedOptions, env: Mapping[str, str]) -> str:
    return parsed.last("--local-dir") or parsed.last("--cache-dir") or cache_directory(env)
