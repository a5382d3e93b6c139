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
# How files lie in a directory: as in the repository (`--local-dir`), or as in the hub's own cache.
FILES, CACHE = "files", "cache"
_PROGRAM = re.compile(r"hf|huggingface-cli|huggingface_hub\.(?:cli\.hf|commands\.huggingface_cli)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BEFORE = re.compile(r"env|sudo|time|exec|command|nohup|!|then|do|if|\(|\{|-.*|python[\d.]*")
_REDIRECTION = re.compile(r"\d*(?:>>?|<).*", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}]*))?\})")
_URI = re.compile(r"hf://(?:(models|datasets)/)?([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?")
_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_CACHES = {"HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}
# Function → the names of its first parameters, of which the first is the repository.
_CALLS = {
    "snapshot_download": ("repo_id",),
    "hf_hub_download": ("repo_id", "filename"),
    "load_dataset": ("path", "name"),
    "from_pretrained": ("pretrained_model_name_or_path",),
}
_LIBRARIES = re.compile(r"(huggingface_hub|datasets)\.\w+|(transformers|diffusers)\.([\w.]+\.)?from_pretrained")
# What a class of transformers needs of a repository besides its weights.
_SMALL = ("*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken")
_SMALL_ONLY = ("Tokenizer", "Config", "Processor", "FeatureExtractor")
_BUILDERS = frozenset({"json", "csv", "parquet", "arrow", "text", "imagefolder", "audiofolder", "webdataset"})


class UnresolvedArgument(Exception):
    """It downloads something, and the words do not say what."""


@dataclass(frozen=True)
class HubRepository:
    """A repository, or a part of it, and the directory that the test has it in, as the test names it.

    `include` and `exclude` are patterns as huggingface_hub has them (`*` also matches `/`); nothing means everything.
    """

    kind: str
    id: str
    directory: str
    layout: str = FILES
    revision: str = MAIN
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Unlike for a model and a dataset of one id."""
        return f"{self.id} (dataset)" if self.kind == DATASET else self.id

    @property
    def folder(self) -> str:
        """Its directory in the hub's cache."""
        return "--".join([f"{self.kind}s", *self.id.split("/")])


def of_command(argv: Sequence[str], env: Mapping[str, str]) -> HubRepository | None:
    """What the words of one command download, in the environment `env`; None for another command. Raises
    UnresolvedArgument."""
    own = dict(env)
    for at, word in enumerate(argv):
        name = word.rpartition("/")[2]
        if _PROGRAM.fullmatch(name):
            # hf has options of its own before the subcommand
            behind = argv[at + 1 :]
            command = next((word for word in behind if not word.startswith("-")), "")
            return _downloaded(behind[behind.index(command) + 1 :], own) if command == "download" else None
        if assigned := _ASSIGNMENT.fullmatch(word):
            own[assigned[1]] = assigned[2]
        elif not _BEFORE.fullmatch(name):
            return None
    return None


class _Parser(argparse.ArgumentParser):
    """The options of `hf download` and of the older huggingface-cli."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("words", nargs="*")
        self.add_argument("--repo-type", "--type", default=MODEL)
        self.add_argument("--revision", "-r", default=MAIN)
        for name in ("--include", "--exclude"):
            self.add_argument(name, action="append", default=[])
        for name in ("--cache-dir", "--local-dir", "--max-workers", "--local-dir-use-symlinks", "--format"):
            self.add_argument(name)
        self.add_argument("--token", "-t")
        self.add_argument("--endpoint")

    def error(self, message: str) -> NoReturn:
        raise UnresolvedArgument(message)


def _downloaded(words: Sequence[str], env: Mapping[str, str]) -> HubRepository:
    own = takewhile(lambda word: not _REDIRECTION.fullmatch(word), words)
    given, _ = _Parser().parse_known_intermixed_args([_expanded(word, env) for word in own])
    if not given.words:
        raise UnresolvedArgument("it names no repository")
    (name, *files), kind, revision = given.words, given.repo_type, given.revision
    if uri := _URI.fullmatch(name):
        kind, name, revision = (uri[1] or "models").removesuffix("s"), uri[2], uri[3] or MAIN
        files = [*([uri[4]] if uri[4] else []), *files]
    # Files that are named make the program ignore patterns; older ones take several patterns behind one flag.
    patterns = given.include + files if any(mark in file for file in files for mark in "*?[") else given.include
    named = bool(files) and patterns is given.include
    return _repository(
        kind,
        name,
        given.local_dir,
        given.cache_dir,
        env,
        revision=revision,
        include=tuple(files if named else patterns),
        exclude=() if named else tuple(given.exclude),
    )


def _repository(
    kind: str,
    id: str,
    local: str,
    cache: str,
    env: Mapping[str, str],
    *,
    revision: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...] = (),
) -> HubRepository:
    if kind not in (MODEL, DATASET):
        raise UnresolvedArgument(f"repositories of the type {kind} are not fetched ahead")
    if not _is_id(id):
        raise UnresolvedArgument(f"{id!r} is no repository's id")
    layout = FILES if local else CACHE
    return HubRepository(kind, id, local or cache or _cache(env), layout, revision or MAIN, include, exclude)


def _expanded(word: str, env: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name in env or match[3] is not None:
            return env.get(name, match[3])
        if name == "HOME":
            return "~"
        raise UnresolvedArgument(f"{match[0]} is not in the row's environment")

    return _VARIABLE.sub(value, _text(word))


def _cache(env: Mapping[str, str]) -> str:
    """Where the hub's library keeps what it is told no directory for; `~` is the home of the test's account."""
    found = ((env[name], below) for name, below in _CACHES.items() if env.get(name))
    return posixpath.join(*next(found, ("~/.cache/huggingface", "hub"))).rstrip("/")


def _is_id(text: str) -> bool:
    """Whether it can be a repository's id, and not a path."""
    return bool(_ID.fullmatch(text)) and not text.startswith(".") and ".." not in text


def of_library(call: LaunchCall, env: Mapping[str, str]) -> HubRepository | None:
    """What a call of huggingface_hub, datasets or transformers downloads; None for one that does not, or that only
    reads what is there. Raises UnresolvedArgument."""
    parameters = _CALLS.get(call.function, ())
    if not parameters or not _LIBRARIES.fullmatch(call.target):
        return None
    given = {**dict(zip(parameters, call.args, strict=False)), **call.kwargs}
    if given.get("local_files_only") is True:
        return None
    name, file, folder = (_text(given.get(key)) for key in (parameters[0], "filename", "subfolder"))
    kind, include = _text(given.get("repo_type")) or MODEL, _texts(given.get("allow_patterns"))
    if call.function == "load_dataset":  # its raw files, of which the library makes its own form
        kind = DATASET
    if not parameters[0].startswith("repo_") and (not _is_id(name) or name in _BUILDERS):
        return None  # a directory, or files of its own
    if call.function == "from_pretrained" and call.target.split(".")[-2].endswith(_SMALL_ONLY):
        include = _SMALL
    if file:
        include = (posixpath.join(folder, file),)
    return _repository(
        kind,
        name,
        _text(given.get("local_dir")),
        _text(given.get("cache_dir")),
        env,
        revision=_text(given.get("revision")),
        include=include,
        exclude=_texts(given.get("ignore_patterns")),
    )


def _text(value: Value) -> str:
    """The text, "" for None. Raises UnresolvedArgument."""
    if value is not None and not isinstance(value, str):
        raise UnresolvedArgument(f"{value!r} is no text")
    if unknown := UNKNOWN.search(value or ""):
        raise UnresolvedArgument(f"{unknown[0]} is not known")
    return value or ""


def _texts(value: Value) -> tuple[str, ...]:
    return tuple(map(_text, value if isinstance(value, list) else [value] if value else []))
