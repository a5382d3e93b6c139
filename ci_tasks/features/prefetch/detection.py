"""What a test launches → what it will ask the hub for, and which paths it takes to be there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ci_tasks.features.prefetch.download_command import UnresolvedArgument, is_download, repository
from ci_tasks.features.prefetch.library_calls import is_library, of_library
from ci_tasks.features.prefetch.repositories import (
    DATASET,
    FILES,
    ExpectedPath,
    HubRepository,
    HubRequirements,
    SourceLocation,
    UnresolvedDownload,
)
from ci_tasks.features.suites.slime_helpers import CONVERTED, DATASETS, HELPERS, MODELS, commands_of
from ci_tasks.recorder.records import UNKNOWN, Frame, LaunchCall, Recording, Value, commands_in, shell_split
from ci_tasks.recorder.sandbox import ROOT

# Flags of a training whose value is a path, or an id that transformers would download.
_PATHS = ("--hf-checkpoint", "--prompt-data", "--eval-prompt-data")
_HIDDEN = re.compile(r"\b(?:hf|huggingface-cli)\s+download\b|snapshot_download|hf_hub_download")
_SHELL = re.compile(r"-[a-z]*c")
_SLICE = re.compile(r"@?\[[^]]*\]$")  # `data.jsonl@[0:100]` reads a part of the file


@dataclass
class _RequirementCollector:
    """What was found so far. `made` are paths that the test itself makes, `asked` those that it needs."""

    repositories: dict[HubRepository, SourceLocation] = field(default_factory=dict)
    unknown: dict[UnresolvedDownload, SourceLocation] = field(default_factory=dict)
    needed: dict[str, SourceLocation] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)


def hub_requirements(recording: Recording, env: Mapping[str, str], test: str) -> HubRequirements:
    """What the test downloads when it runs with `env`."""
    collector = _RequirementCollector()
    for why in _incomplete_reasons(recording):
        _add_unresolved(collector, UnresolvedDownload(test, why), SourceLocation(test, 1, test, recording.origin))
    for call in recording.calls:
        place = call.stack[-1] if call.stack else Frame(test, "", 1)
        source = SourceLocation(place.file, place.line, call.function, call.origin)
        _read_helper(collector, call, source)
        _read_commands(collector, call, source, {**env, **call.env})
        if is_library(call):
            _add_repository(collector, source, lambda call=call: of_library(call, {**env, **call.env}))
    return HubRequirements(
        repositories=tuple(collector.repositories.items()),
        expected=tuple(
            (ExpectedPath(path), source) for path, source in collector.needed.items() if not _is_there(path, collector)
        ),
        unknown=tuple(collector.unknown.items()),
    )


def _incomplete_reasons(recording: Recording) -> list[str]:
    """Why something may be missing: what ended before it had launched all it would."""
    launching = {call.entry for call in recording.calls if call.function in HELPERS or commands_of(call)}
    stops = [stop.why for stop in recording.stops if stop.entry in launching or not stop.entry]
    return [f"not seen from there on: {why}" for why in stops] + ([recording.problem] if recording.problem else [])


def _read_helper(collector: _RequirementCollector, call: LaunchCall, source: SourceLocation) -> None:
    """slime's own helpers: what each downloads, needs and makes."""
    helper, kwargs = call.function, call.kwargs
    if helper == "hf_download_dataset":
        _add_repository(collector, source, lambda: _dataset(kwargs.get("full_name")))
    elif helper == "convert_checkpoint":
        name = kwargs.get("model_name")
        _add_needed_path(collector, source, kwargs.get("hf_checkpoint") or _below(MODELS, name))
        _add_made_path(collector, _below(kwargs.get("dir_dst", CONVERTED), name, "_torch_dist"))
    elif helper in ("rsync_simple", "fp8_cast_bf16"):
        _add_needed_path(collector, source, kwargs.get("path_src"))
        _add_made_path(collector, kwargs.get("path_dst"))
    elif helper == "execute_train":
        for path in _training_inputs(kwargs.get("train_args")):
            _add_needed_path(collector, source, path)


def _dataset(name: Value) -> HubRepository:
    if not isinstance(name, str) or UNKNOWN.search(name):
        raise UnresolvedArgument(f"{name} is not known")
    directory = f"{DATASETS}/{name.rpartition('/')[2]}"
    return HubRepository(DATASET, name, directory, FILES)


def _read_commands(
    collector: _RequirementCollector, call: LaunchCall, source: SourceLocation, env: Mapping[str, str]
) -> None:
    for argv in [inner for outer in commands_of(call) for inner in _inner_commands(outer)]:
        text = " ".join(argv)
        location = replace(source, text=text)
        if is_download(argv):
            _add_repository(collector, location, lambda argv=argv: repository(argv, env))
        elif _HIDDEN.search(text):
            _add_unresolved(
                collector,
                UnresolvedDownload(text, "it is started by another program, whose words are not read"),
                location,
            )
        elif argv and argv[0].startswith("⟨"):
            _add_unresolved(
                collector, UnresolvedDownload(text, f"it is not known which program this is: {argv[0]}"), location
            )


def _inner_commands(argv: Sequence[str]) -> list[list[str]]:
    """The commands of a `bash -c TEXT`; of another program its own words."""
    if argv and argv[0].rpartition("/")[2] in ("bash", "sh"):
        for at, word in enumerate(argv[1:-1], start=1):
            if _SHELL.fullmatch(word):
                return commands_in(argv[at + 1])
    return [list(argv)]


def _add_repository(collector: _RequirementCollector, source: SourceLocation, make: Any) -> None:
    try:
        repository: HubRepository | None = make()
    except UnresolvedArgument as problem:
        _add_unresolved(collector, UnresolvedDownload(source.text, str(problem)), source)
        return
    if repository is not None:
        collector.repositories.setdefault(repository, source)


def _add_unresolved(collector: _RequirementCollector, download: UnresolvedDownload, source: SourceLocation) -> None:
    collector.unknown.setdefault(download, source)


def _add_needed_path(collector: _RequirementCollector, source: SourceLocation, path: Value) -> None:
    if isinstance(path, str) and path.startswith("/") and not UNKNOWN.search(path):
        collector.needed.setdefault(posixpath.normpath(_SLICE.sub("", path)), source)


def _add_made_path(collector: _RequirementCollector, path: Value) -> None:
    if isinstance(path, str) and path.startswith("/"):
        collector.made.append(posixpath.normpath(path))


def _is_there(path: str, collector: _RequirementCollector) -> bool:
    """Downloaded or made by the test, in its temporary directory, or of the checkout itself."""
    places = [
        posixpath.normpath(repository.directory) for repository in collector.repositories if repository.layout == FILES
    ]
    places += [*collector.made, "/tmp", ROOT]
    return any(path == place or path.startswith(place + "/") for place in places)


def _training_inputs(train_args: Value) -> Iterator[str]:
    """The paths and ids that a training is given to read."""
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
