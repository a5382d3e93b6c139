"""JSON schemas of what programs read: `--json` of each command, and the lines of `--events`.

They are made from the records that are printed, so that neither can say something else:

    python -m ci_tasks.cli.schemas      writes docs/schemas: a file for commands that print the same

A field that is added is no new version of a schema, so readers ignore keys that they do not know.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ci_tasks import registry
from ci_tasks.agent.codec import JSON_SCHEMA, VERSION_KEY
from ci_tasks.cli.commands import commands
from ci_tasks.registry import Command

EVENTS = "events"
_EVENT = "ci_tasks.run.events:Event"
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_DIRECTORY = Path("docs/schemas")
_TYPES: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def commands_by_schema() -> dict[str, list[Command]]:
    """The name of a schema, which is that of the first command of its → the commands whose --json it describes."""
    by_records: dict[tuple[str, ...], list[Command]] = {}
    for command in commands():
        if command.json:
            by_records.setdefault(command.json, []).append(command)
    return {alike[0].name: alike for alike in by_records.values()}


def schemas() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name → schema: of --json, and of a line of --events."""
    for name, alike in commands_by_schema().items():
        yield name, _document(f"{', '.join(command.name for command in alike)} --json", alike[0].json)
    yield EVENTS, _document("a line of --events", (_EVENT,))


def _document(title: str, references: tuple[str, ...]) -> dict[str, Any]:
    """`references` are `module:Record`, or `module:Record[]` for a list of them."""
    definitions: dict[str, Any] = {}
    records = [_schema(registry.load(reference.removesuffix("[]")), definitions) for reference in references]
    forms = [
        {"type": "array", "items": record} if reference.endswith("[]") else record
        for reference, record in zip(references, records, strict=True)
    ]
    content = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return {"$schema": _DRAFT, "title": title, **content, "$defs": dict(sorted(definitions.items()))}


def _schema(kind: Any, definitions: dict[str, Any]) -> Mapping[str, Any]:
    """The schema of an annotation; records are put into `definitions`."""
    if kind in (Any, object):
        return {}
    if kind in _TYPES:
        return {"type": _TYPES[kind]}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(argument, definitions) for argument in arguments]}
    if origin is tuple and arguments[1:] != (...,):
        return {"type": "array", "prefixItems": [_schema(argument, definitions) for argument in arguments]}
    if origin in (tuple, list, collections.abc.Sequence):
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # of one that holds itself
            definitions[kind.__name__] = _record(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    raise TypeError(f"no JSON schema for {kind}")


def _record(kind: Any, definitions: dict[str, Any]) -> Mapping[str, Any]:
    """Every key is always there, but those that say so."""
    annotations = typing.get_type_hints(kind)
    stored = [field for field in dataclasses.fields(kind) if field.metadata.get("stored", True)]
    own = {field.name: field.metadata.get(JSON_SCHEMA, {}) for field in stored}
    properties = {
        field.name: own[field.name].get("schema") or _schema(annotations[field.name], definitions) for field in stored
    }
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "properties": {VERSION_KEY: {"type": "string"}, **properties},
        "required": [name for name in properties if not own[name].get("optional")],
    }


def text(schema: Mapping[str, Any]) -> str:
    """A line for each definition: short, and a difference shows which record has changed."""
    definitions = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in schema["$defs"].items()]
    head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in schema.items() if key != "$defs"]
    inner = ",\n  ".join(definitions)
    return ",\n".join(["{" + head[0], *head[1:], f'"$defs": {{\n  {inner}\n}}}}']) + "\n"


def main() -> None:
    directory = Path(sys.argv[1]) if sys.argv[1:] else _DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas():
        (directory / f"{name}.json").write_text(text(schema), encoding="utf-8")


if __name__ == "__main__":
    main()
