"""Calls of Python libraries that download from the hub: huggingface_hub's own, datasets' and transformers'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ci_tasks.suites.prefetch.command import NotKnown, cache_directory, is_id
from ci_tasks.suites.prefetch.wants import CACHE, DATASET, FILES, KINDS, MAIN, MODEL, Repository
from ci_tasks.suites.reading.values import Call, Partly, Unresolved

# Function → the names of its first parameters.
_HUB = {"snapshot_download": ("repo_id",), "hf_hub_download": ("repo_id", "filename")}
# What a class of transformers needs of a repository besides its weights.
_SMALL = ("*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken")
_SMALL_ONLY = ("Tokenizer", "Config", "Processor", "FeatureExtractor")
_BUILDERS = frozenset({"json", "csv", "parquet", "arrow", "text", "imagefolder", "audiofolder", "webdataset"})


def is_library(call: Call) -> bool:
    """Whether the call may download."""
    module, _, name = call.target.rpartition(".")
    root = call.target.partition(".")[0]
    return (
        (root == "huggingface_hub" and name in _HUB)
        or (root == "datasets" and name == "load_dataset")
        or (root in ("transformers", "diffusers") and name == "from_pretrained" and bool(module))
    )


def of_library(call: Call, env: Mapping[str, str]) -> Repository | None:
    """What it downloads; None for one that reads what is there. Raises NotKnown."""
    name = call.target.rpartition(".")[2]
    if name in _HUB:
        return _of_hub(call, {**dict(zip(_HUB[name], call.args, strict=False)), **call.kwargs}, env)
    if name == "load_dataset":
        return _of_datasets(call, {**dict(zip(("path", "name"), call.args, strict=False)), **call.kwargs}, env)
    first = ("pretrained_model_name_or_path",)
    return _of_transformers(call, {**dict(zip(first, call.args, strict=False)), **call.kwargs}, env)


def _of_hub(call: Call, given: Mapping[str, Any], env: Mapping[str, str]) -> Repository | None:
    if _plain(given.get("local_files_only")):
        return None
    kind = _text(given.get("repo_type")) or MODEL
    if kind not in KINDS:
        raise NotKnown(f"repositories of the type {kind} are not fetched ahead")
    directory = _text(given.get("local_dir"))
    file = _text(given.get("filename"))
    folder = _text(given.get("subfolder"))
    return Repository(
        kind=kind,
        id=_id(given.get("repo_id")),
        directory=directory or _text(given.get("cache_dir")) or cache_directory(env),
        layout=FILES if directory else CACHE,
        revision=_text(given.get("revision")) or MAIN,
        include=(f"{folder}/{file}" if folder else file,) if file else _texts(given.get("allow_patterns")),
        exclude=_texts(given.get("ignore_patterns")),
        conditions=call.conditions,
    )


def _of_datasets(call: Call, given: Mapping[str, Any], env: Mapping[str, str]) -> Repository | None:
    """Its raw files; the library makes its own form of them from there."""
    path = _text(given.get("path"))
    if not path or path in _BUILDERS or not is_id(path):
        return None
    revision = _text(given.get("revision")) or MAIN
    return Repository(DATASET, path, cache_directory(env), CACHE, revision, conditions=call.conditions)


def _of_transformers(call: Call, given: Mapping[str, Any], env: Mapping[str, str]) -> Repository | None:
    name = given.get("pretrained_model_name_or_path")
    if name is None or _plain(given.get("local_files_only")):
        return None
    text = _text(name)
    if not is_id(text):
        return None
    owner = call.target.split(".")[-2]
    return Repository(
        kind=MODEL,
        id=text,
        directory=_text(given.get("cache_dir")) or cache_directory(env),
        layout=CACHE,
        revision=_text(given.get("revision")) or MAIN,
        include=_SMALL if owner.endswith(_SMALL_ONLY) else (),
        conditions=call.conditions,
    )


def _id(value: Any) -> str:
    text = _text(value)
    if not is_id(text):
        raise NotKnown(f"{text!r} is no repository's id")
    return text


def _text(value: Any) -> str:
    """The text, "" for None. Raises NotKnown."""
    plain = _plain(value)
    if plain is None:
        return ""
    if isinstance(plain, str):
        return plain
    raise NotKnown(f"{plain!r} is no text")


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(_text(item) for item in value)
    return (_text(value),) if value is not None else ()


def _plain(value: Any) -> Any:
    hole = value.holes[0] if isinstance(value, Partly) else value
    if isinstance(hole, Unresolved):
        raise NotKnown(f"{hole.text} (line {hole.line}): {hole.why}")
    return value
