"""docs/reference/commands.md: what `ci-tasks --help COMMAND` prints of every command, with its exit codes and schema.

python -m ci_tasks.cli.reference      writes it
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ci_tasks import registry
from ci_tasks.cli import help
from ci_tasks.cli.commands import HEADINGS, commands
from ci_tasks.cli.commands.run import RemoteOptions
from ci_tasks.cli.options import flag_of, options_of
from ci_tasks.cli.schemas import commands_by_schema
from ci_tasks.registry import Command

PAGE = Path("docs/reference/commands.md")
_COLUMNS = 120
_INTRODUCTION = """\
# Commands and options

`python -m ci_tasks.cli.reference` writes this page: `ci-tasks --help COMMAND` prints the same in a terminal. In a clone
of ci-tasks, `invoke` has the same commands.
"""
_NOX = """\
## After nox's `--`

`nox -s LABEL -- …` takes parts of row names, and these options of [`remote`](#ci-tasks-remote):
"""


def page() -> str:
    """The page's text, in the order in which `ci-tasks` lists the commands: by heading, those of the core first."""
    lines = [_INTRODUCTION, *_block(help.overview(with_options=True, columns=_COLUMNS))]
    for heading in dict.fromkeys([*HEADINGS, *(command.heading for command in commands())]):
        lines += [f"## {heading}", ""]
        for command in commands():
            if command.heading == heading:
                lines += [f"### ci-tasks {command.name}", "", *_block(help.of_command(command.name, _COLUMNS))]
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
    sessions: dict[str, list[str]] = {}
    for session in (session for feature in registry.features() for session in feature.nox_sessions):
        sessions.setdefault(session.command_line[0], []).append(f"`{session.name}`")
    for name, names in sessions.items():
        yield from ("", f"The sessions {', '.join(names)} take the options of [`{name}`](#ci-tasks-{name}).")


if __name__ == "__main__":
    (Path(sys.argv[1]) if sys.argv[1:] else PAGE).write_text(page(), encoding="utf-8")
