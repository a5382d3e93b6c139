"""What programs read, against the published schemas: `--json` of a command, and the lines of `--events`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from docs import generate

_DIRECTORY = Path(__file__).resolve().parents[1] / "docs/schemas"


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((_DIRECTORY / f"{name}.json").read_text()))


def check(command: str, value: Any) -> Any:
    """`value`, if it is what the schema of `command` says."""
    names = (name for name, alike in generate.commands_by_schema().items() if command in [each.name for each in alike])
    _validator(next(names)).validate(value)
    return value


def check_events(text: str) -> list[dict[str, Any]]:
    """The events of the lines, each as its schema says."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        _validator(generate.EVENTS).validate(line)
        assert line["version"] == "1.0"
    return lines


def check_command(argv: Sequence[str], directory: Path, out: str) -> None:
    """What the command `argv`, run in `directory`, has printed and written for programs."""
    if "--json" in argv and out.strip():
        check(argv[0], json.loads(out))
    if "--events" in argv:
        target = argv[argv.index("--events") + 1]
        if target == "-":
            check_events(out)
        elif (directory / target).is_file():
            check_events((directory / target).read_text())
