"""What a test launches → what it will ask the hub for, and which paths it takes to be there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ci_tasks.features.prefetch.download_command import UnresolvedArgument, is_download, repository
from ci_tasks.features.prefetch.library_calls import is_library, of_library
from ci_tasks.features.prefetch.repositories import (
    DATASET,
    FILES,
    HubRepository,
    HubRequirements,
    SourceLocation,
)
from ci_tasks.features.recorder.records import (
    ROOT,
    UNKNOWN,
    Frame,
    LaunchCall,
    Recording,
    Value,
    commands_in,
    shell_split,
)
from ci_tasks.features.suites.slime_helpers import CONVERTED, DATASETS, HELPERS, MODELS, commands_of

# Flags of a training whose value is a path, or an id that transformers would download.
_PATHS = ("--hf-checkpoint", "--prompt-data", "--eval-prompt-data")
_HIDDEN = re.compile(r"\b(?:hf|huggingface-cli)\s+download\b|snapshot_download|hf_hub_download")
_SHELL = re.compile(r"-[a-z]*c")
_SLICE = re.compile(r"@?\[[^]]*\]$")  # `data.jsonl@[0:100]` reads a part of the file


def hub_requirements(recording: Recording, env: Mapping[str, str], test: str) -> HubRequirements:
    detection = _Detection(env)
    for why in _incomplete_reasons(recording):
        detection.found.unknown[test, why] = SourceLocation(test, 1, test, recording.origin)
    for call in recording.calls:
        place = call.stack[-1] if call.stack else Frame(test, "", 1)
        detection.read_call(call, SourceLocation(place.file, place.line, call.function, call.origin))
    return detection.requirements()


def _incomplete_reasons(recording: Recording) -> list[str]:
    """Why something may be missing: what ended before it had launched all it would."""
    launching = {call.entry for call in recording.calls if call.function in HELPERS or commands_of(call)}
    stops = [stop.why for stop in recording.stops if stop.entry in launching or not stop.entry]
    return [f"not seen from there on: {why}" for why in stops] + ([recording.problem] if recording.problem else [])


class _Detection:
    """What was found so far. `made` are paths that the test itself makes."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env, self.found = env, HubRequirements()
        self.made = ["/tmp", ROOT]

    def requirements(self) -> HubRequirements:
        places = [
            posixpath.normpath(repository.directory)
            for repository in self.found.repositories
            if repository.layout == FILES
        ] + self.made
        expected = {
            path: source
            for path, source in self.found.expected.items()
            if not any(path == place or path.startswith(place + "/") for place in places)
        }
        return replace(self.found, expected=expected)

    def read_call(self, call: LaunchCall, source: SourceLocation) -> None:
        env = {**self.env, **call.env}
        self._read_helper(call, source)
        self._read_commands(call, source, env)
        if is_library(call):
            self._add(source, lambda: of_library(call, env))

    def _read_helper(self, call: LaunchCall, source: SourceLocation) -> None:
        """slime's own helpers: what each downloads, needs and makes."""
        helper, kwargs = call.function, call.kwargs
        if helper == "hf_download_dataset":
            self._add(source, lambda: _dataset(kwargs.get("full_name")))
        elif helper == "convert_checkpoint":
            name = kwargs.get("model_name")
            self._need(source, kwargs.get("hf_checkpoint") or _below(MODELS, name))
            self._make(_below(kwargs.get("dir_dst", CONVERTED), name, "_torch_dist"))
        elif helper in ("rsync_simple", "fp8_cast_bf16"):
            self._need(source, kwargs.get("path_src"))
            self._make(kwargs.get("path_dst"))
        elif helper == "execute_train":
            for path in _training_inputs(kwargs.get("train_args")):
                self._need(source, path)

    def _read_commands(self, call: LaunchCall, source: SourceLocation, env: Mapping[str, str]) -> None:
        for argv in [inner for outer in commands_of(call) for inner in _inner_commands(outer)]:
            text = " ".join(argv)
            location = replace(source, text=text)
            if is_download(argv):
                self._add(location, lambda argv=argv: repository(argv, env))
            elif _HIDDEN.search(text):
                why = "it is started by another program, whose words are not read"
                self.found.unknown.setdefault((text, why), location)
            elif argv and argv[0].startswith("⟨"):
                why = f"it is not known which program this is: {argv[0]}"
                self.found.unknown.setdefault((text, why), location)

    def _add(self, source: SourceLocation, make: Any) -> None:
        try:
            found: HubRepository | None = make()
        except UnresolvedArgument as problem:
            self.found.unknown.setdefault((source.text, str(problem)), source)
            return
        if found is not None:
            self.found.repositories.setdefault(found, source)

    def _need(self, source: SourceLocation, path: Value) -> None:
        if isinstance(path, str) and path.startswith("/") and not UNKNOWN.search(path):
            self.found.expected.setdefault(posixpath.normpath(_SLICE.sub("", path)), source)

    def _make(self, path: Value) -> None:
        if isinstance(path, str) and path.startswith("/"):
            self.made.append(posixpath.normpath(path))


def _dataset(name: Value) -> HubRepository:
    if not isinstance(name, str) or UNKNOWN.search(name):
        raise UnresolvedArgument(f"{name} is not known")
    directory = f"{DATASETS}/{name.rpartition('/')[2]}"
    return HubRepository(DATASET, name, directory, FILES)


def _inner_commands(argv: Sequence[str]) -> list[list[str]]:
    """The commands of a `bash -c TEXT`; of another program its own words."""
    if argv and argv[0].rpartition("/")[2] in ("bash", "sh"):
        for at, word in enumerate(argv[1:-1], start=1):
            if _SHELL.fullmatch(word):
                return commands_in(argv[at + 1])
    return [list(argv)]


def _training_inputs(train_args: Value) -> Iterator[str]:
    if not isinstance(train_args, str):
        return
    flag = ""
    for text in shell_split(train_args):
        if text.startswith("--"):
            flag, _, text = text.partition("=")
        if flag in _PATHS and text:
            yield text


def _below(directory: Value, name: Value, more: str = "") -> str | None:
    return f"{directory}/{name}{more}" if isinstance(directory, str) and isinstance(name, str) else None
