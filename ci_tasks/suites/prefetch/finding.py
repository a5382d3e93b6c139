"""A test, read → what it will ask the hub for, and which paths it takes to be there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.suites.prefetch.command import NotKnown, is_download, repository
from ci_tasks.suites.prefetch.library import is_library, of_library
from ci_tasks.suites.prefetch.wants import DATASET, FILES, Expected, Repository, Source, Unknown, Wants
from ci_tasks.suites.reading import texts
from ci_tasks.suites.reading.interface import CONVERTED, DATASETS, MODELS, commands_of, helper_of, named
from ci_tasks.suites.reading.values import Call, Partly, Reading, Text, Unresolved

# Flags of a training whose value is a path, or an id that transformers would download.
_PATHS = ("--hf-checkpoint", "--prompt-data", "--eval-prompt-data")
_HIDDEN = re.compile(r"\b(?:hf|huggingface-cli)\s+download\b|snapshot_download|hf_hub_download")
_SHELL = re.compile(r"-[a-z]*c")
_SLICE = re.compile(r"@?\[[^]]*\]$")  # `data.jsonl@[0:100]` reads a part of the file


@dataclass
class _Found:
    """What was found so far. `made` are paths that the test itself makes, `asked` those that it needs."""

    repositories: dict[Repository, Source] = field(default_factory=dict)
    unknown: dict[Unknown, Source] = field(default_factory=dict)
    asked: dict[str, Source] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)


def wants(reading: Reading, env: Mapping[str, str], test: str) -> Wants:
    """What the test downloads when it runs with `env`. A call that no run reaches is not among a reading's."""
    found = _Found()
    if reading.problem:
        _say(found, reading.problem, Source(test, reading.problem.line, reading.problem.text))
    for call in reading.calls:
        source = Source(call.file or test, call.line, call.name)
        _helper(found, call, source)
        _commands(found, call, source, env)
        if is_library(call):
            _add(found, source, lambda call=call: of_library(call, env))
    return Wants(
        repositories=tuple(found.repositories.items()),
        expected=tuple((Expected(path), source) for path, source in found.asked.items() if not _is_there(path, found)),
        unknown=tuple(found.unknown.items()),
    )


def _helper(found: _Found, call: Call, source: Source) -> None:
    """slime's own helpers: what each downloads, needs and makes."""
    helper, given = helper_of(call), named(call)
    if helper == "hf_download_dataset":
        _add(found, source, lambda: _dataset(call, given.get("full_name")))
    elif helper == "convert_checkpoint":
        name = given.get("model_name")
        _needs(found, source, given.get("hf_checkpoint") or _below(MODELS, name))
        _makes(found, _below(given.get("dir_dst", CONVERTED), name, "_torch_dist"))
    elif helper in ("rsync_simple", "fp8_cast_bf16"):
        _needs(found, source, given.get("path_src"))
        _makes(found, given.get("path_dst"))
    elif helper == "execute_train":
        for path in _trained_on(given.get("train_args")):
            _needs(found, source, path)


def _dataset(call: Call, name: Any) -> Repository:
    if not isinstance(name, str):
        raise NotKnown(_why(name))
    directory = f"{DATASETS}/{name.rpartition('/')[2]}"
    return Repository(DATASET, name, directory, FILES, conditions=call.conditions)


def _commands(found: _Found, call: Call, source: Source, env: Mapping[str, str]) -> None:
    for words in [inner for outer in commands_of(call) for inner in _unwrapped(outer)]:
        text = " ".join(str(word) for word in words)
        here = Source(source.file, source.line, text)
        if is_download(words):
            _add(found, here, lambda words=words: repository(words, env, call.conditions))
        elif _HIDDEN.search(text):
            _say(found, Unknown(text, "it is started by another program, whose words are not read"), here)
        elif words and not isinstance(words[0], str) and not isinstance(words[0].parts[0], str):
            _say(found, Unknown(text, f"it is not known which program this is: {_why(words[0])}"), here)


def _unwrapped(words: Sequence[Text]) -> list[list[Text]]:
    """The commands of a `bash -c TEXT`; of another program its own words."""
    if words and isinstance(words[0], str) and words[0].rpartition("/")[2] in ("bash", "sh"):
        for at, word in enumerate(words[1:-1], start=1):
            if isinstance(word, str) and _SHELL.fullmatch(word):
                return texts.commands(words[at + 1])
    return [list(words)]


def _add(found: _Found, source: Source, make: Any) -> None:
    try:
        wanted: Repository | None = make()
    except NotKnown as problem:
        _say(found, Unknown(source.text, str(problem)), source)
        return
    if wanted is not None:
        found.repositories.setdefault(wanted, source)


def _say(found: _Found, what: Unresolved | Unknown, source: Source) -> None:
    found.unknown.setdefault(Unknown(what.text, what.why), source)


def _needs(found: _Found, source: Source, path: Any) -> None:
    if isinstance(path, str) and path.startswith("/"):
        found.asked.setdefault(posixpath.normpath(_SLICE.sub("", path)), source)


def _makes(found: _Found, path: Any) -> None:
    if isinstance(path, str) and path.startswith("/"):
        found.made.append(posixpath.normpath(path))


def _is_there(path: str, found: _Found) -> bool:
    places = [posixpath.normpath(one.directory) for one in found.repositories if one.layout == FILES] + found.made
    return any(path == place or path.startswith(place + "/") for place in places)


def _trained_on(train_args: Any) -> Iterator[str]:
    """The paths and ids that a training is given to read."""
    if not isinstance(train_args, str | Partly):
        return
    flag = ""
    for word in texts.words(train_args):
        text = word if isinstance(word, str) else ""
        if text.startswith("--"):
            flag, _, text = text.partition("=")
        if flag in _PATHS and text:
            yield text


def _below(directory: Any, name: Any, more: str = "") -> Text | None:
    return f"{directory}/{name}{more}" if isinstance(directory, str) and isinstance(name, str) else None


def _why(value: Any) -> str:
    if isinstance(value, Partly):
        value = value.holes[0]
    if isinstance(value, Unresolved):
        return f"{value.text} (line {value.line}): {value.why}"
    return "it is no text"
