"""`python docs/generate.py` writes docs/reference/commands.md, the end of docs/reference/statuses.md, and docs/schemas.

The page has what `ci-tasks --help COMMAND` prints of every command, with its exit codes and schema. The JSON schemas
are of what programs read: `--json` of each command, in one file for commands that print the same, and the lines of
`--events`. They are made from the records that are printed, so that neither can say something else. A field that is
added is no new version of a schema, so readers ignore keys that they do not know.
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
from ci_tasks.cli.commands import HEADINGS, commands
from ci_tasks.cli.commands.labels import RemoteOptions
from ci_tasks.cli.options import flag_of, options_of
from ci_tasks.cli.program import help_of_command, overview
from ci_tasks.registry import Command
from ci_tasks.trials.words import MEANINGS

DOCS = Path("docs")
EVENTS = "events"
_EVENT = "ci_tasks.run.events:Event"
_COLUMNS = 120
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_INTRODUCTION = """\
# Commands and options

`python docs/generate.py` writes this page: `ci-tasks --help COMMAND` prints the same in a terminal. In a clone
of ci-tasks, `invoke` has the same commands.
"""
_NOX = """\
## After nox's `--`

`nox -s LABEL -- …` takes parts of row names, and these options of [`remote`](#ci-tasks-remote):
"""


# -- the page ----------------------------------------------------------------------------------------------------------


def page() -> str:
    """The page's text, in the order in which `ci-tasks` lists the commands: by heading, those of the core first."""
    lines = [_INTRODUCTION, *_block(overview(with_options=True, width=_COLUMNS))]
    for heading in dict.fromkeys([*HEADINGS, *(command.heading for command in commands())]):
        lines += [f"## {heading}", ""]
        for command in commands():
            if command.heading == heading:
                lines += [f"### ci-tasks {command.name}", "", *_block(help_of_command(command.name, _COLUMNS))]
                lines += [f"{links}.", ""] if (links := "; ".join(_links(command))) else []
    return "\n".join([*lines, *_nox()]) + "\n"


def exit_codes(command: Command) -> dict[str, int]:
    """Word → exit code: what `command` adds to the codes of every command."""
    return dict(registry.load(command.exit_codes)) if command.exit_codes else {}


def _block(lines: Iterator[str]) -> list[str]:
    return ["```text", *"\n".join(lines).strip().split("\n"), "```", ""]


def _links(command: Command) -> Iterator[str]:
    if codes := exit_codes(command):
        yield "Exit codes: " + ", ".join(f"{code} {word}" for word, code in codes.items())
    for schema, alike in commands_by_schema().items():
        if command in alike:
            yield f"`--json`: [{schema}.json](../schemas/{schema}.json)"


def _nox() -> Iterator[str]:
    accepted = {name: option for name, option in options_of(RemoteOptions).items() if option.nox}
    yield from (_NOX, ", ".join(f"`{flag_of(name, option)}`" for name, option in accepted.items()) + ".")


# -- schemas -----------------------------------------------------------------------------------------------------------


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
    forms = []
    for reference in references:
        record = _schema(registry.load(reference.removesuffix("[]")), definitions)
        forms.append({"type": "array", "items": record} if reference.endswith("[]") else record)
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
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # of one that holds itself
        definitions[kind.__name__] = _record(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _record(kind: Any, definitions: dict[str, Any]) -> Mapping[str, Any]:
    """Every key is always there, except the keys that say so."""
    annotations = typing.get_type_hints(kind)
    stored = [field for field in dataclasses.fields(kind) if field.metadata.get("stored", True)]
    own = {field.name: field.metadata.get(JSON_SCHEMA, {}) for field in stored}
    properties = {name: own[name].get("schema") or _schema(annotations[name], definitions) for name in own}
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


def results_of_trials() -> str:
    """The tables at the end of statuses.md."""
    lines = []
    for command, meanings in MEANINGS.items():
        lines += [f"## Results of {command}", "", "| result | exit code | meaning |", "|---|---|---|"]
        lines += [f"| {word} | {code} | {meaning} |" for word, (code, meaning) in meanings.items()]
        lines += ["", "The other results are the same as for `reproduce`.", ""] if "--" in command else [""]
    return "\n".join(lines).rstrip() + "\n"


def write(docs: Path) -> None:
    statuses, results = docs / "reference/statuses.md", results_of_trials()
    begin = results.partition("\n")[0]
    statuses.write_text(statuses.read_text(encoding="utf-8").partition(begin)[0] + results, encoding="utf-8")
    (docs / "reference/commands.md").write_text(page(), encoding="utf-8")
    for name, schema in schemas():
        (docs / f"schemas/{name}.json").write_text(text(schema), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if sys.argv[1:] else DOCS)
