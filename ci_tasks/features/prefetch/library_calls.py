"""Calls of Python libraries that download from the hub: huggingface_hub's own, datasets' and transformers'."""

from __future__ import annotations

from collections.abc import Mapping

from ci_tasks.features.prefetch.download_command import UnresolvedArgument, cache_directory, is_id
from ci_tasks.features.prefetch.repositories import CACHE, DATASET, FILES, KINDS, MAIN, MODEL, HubRepository
from ci_tasks.features.recorder.records import UNKNOWN, LaunchCall, Value

# Function → the names of its first parameters.
_HUB = {"snapshot_download": ("repo_id",), "hf_hub_download": ("repo_id", "filename")}
# What a class of transformers needs of a repository besides its weights.
_SMALL = ("*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken")
_SMALL_ONLY = ("Tokenizer", "Config", "Processor", "FeatureExtractor")
_BUILDERS = frozenset({"json", "csv", "parquet", "arrow", "text", "imagefolder", "audiofolder", "webdataset"})


def is_library(call: LaunchCall) -> bool:
    """Whether the call may download."""
    module, _, name = call.target.rpartition(".")
    root = call.target.partition(".")[0]
    return (
        (root == "huggingface_hub" and name in _HUB)
        or (root == "datasets" and name == "load_dataset")
        or (root in ("transformers", "diffusers") and name == "from_pretrained" and bool(module))
    )


def of_library(call: LaunchCall, env: Mapping[str, str]) -> HubRepository | None:
    """What it downloads; None for one that reads what is there. Raises NotKnown."""
    name = call.target.rpartition(".")[2]
    if name in _HUB:
        return _of_hub(call, {**dict(zip(_HUB[name], call.args, strict=False)), **call.kwargs}, env)
    if name == "load_dataset":
        return _of_datasets(call, {**dict(zip(("path", "name"), call.args, strict=False)), **call.kwargs}, env)
    first = ("pretrained_model_name_or_path",)
    return _of_transformers(call, {**dict(zip(first, call.args, strict=False)), **call.kwargs}, env)


def _of_hub(call: LaunchCall, arguments: Mapping[str, Value], env: Mapping[str, str]) -> HubRepository | None:
    if _plain(arguments.get("local_files_only")):
        return None
    kind = _text(arguments.get("repo_type")) or MODEL
    if kind not in KINDS:
        raise UnresolvedArgument(f"repositories of the type {kind} are not fetched ahead")
    directory = _text(arguments.get("local_dir"))
    file = _text(arguments.get("filename"))
    folder = _text(arguments.get("subfolder"))
    return HubRepository(
        kind=kind,
        id=_id(arguments.get("repo_id")),
        directory=directory or _text(arguments.get("cache_dir")) or cache_directory(env),
        layout=FILES if directory else CACHE,
        revision=_text(arguments.get("revision")) or MAIN,
        include=(f"{folder}/{file}" if folder else file,) if file else _texts(arguments.get("allow_patterns")),
        exclude=_texts(arguments.get("ignore_patterns")),
    )


def _of_datasets(call: LaunchCall, arguments: Mapping[str, Value], env: Mapping[str, str]) -> HubRepository | None:
    """Its raw files; the library makes its own form of them from there."""
    path = _text(arguments.get("path"))
    if not path or path in _BUILDERS or not is_id(path):
        return None
    revision = _text(arguments.get("revision")) or MAIN
    return HubRepository(DATASET, path, cache_directory(env), CACHE, revision)


def _of_transformers(call: LaunchCall, arguments: Mapping[str, Value], env: Mapping[str, str]) -> HubRepository | None:
    name = arguments.get("pretrained_model_name_or_path")
    if name is None or _plain(arguments.get("local_files_only")):
        return None
    text = _text(name)
    if not is_id(text):
        return None
    owner = call.target.split(".")[-2]
    return HubRepository(
        kind=MODEL,
        id=text,
        directory=_text(arguments.get("cache_dir")) or cache_directory(env),
        layout=CACHE,
        revision=_text(arguments.get("revision")) or MAIN,
        include=_SMALL if owner.endswith(_SMALL_ONLY) else (),
    )


def _id(value: Value) -> str:
    text = _text(value)
    if not is_id(text):
        raise UnresolvedArgument(f"{text!r} is no repository's id")
    return text


def _text(value: Value) -> str:
    """The text, "" for None. Raises NotKnown."""
    plain = _plain(value)
    if plain is None:
        return ""
    if isinstance(plain, str):
        return plain
    raise UnresolvedArgument(f"{plain!r} is no text")


def _texts(value: Value) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(_text(item) for item in value)
    return (_text(value),) if value is not None else ()


def _plain(value: Value) -> Value:
    if isinstance(value, str) and (unknown := UNKNOWN.search(value)):
        raise UnresolvedArgument(f"{unknown[0]} is not known")
    return value
