"""docs/reference/commands.md: every command with its arguments, options and examples, from the declarations that the
program itself reads.

    python -m ci_tasks.cli.reference      writes it
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ci_tasks import registry
from ci_tasks.cli import help
from ci_tasks.cli.commands import HEADINGS, commands
from ci_tasks.cli.commands.run import RemoteOptions
from ci_tasks.cli.options import Option, flag_of, options_class, options_of, typed
from ci_tasks.cli.parser import PROGRAM_OPTIONS
from ci_tasks.cli.schemas import commands_by_schema
from ci_tasks.registry import Command

PAGE = Path("docs/reference/commands.md")
_INTRODUCTION = """\
# Commands and options

`python -m ci_tasks.cli.reference` writes this page, from the declarations that the program reads. `ci-tasks -h COMMAND`
prints the same in a terminal. In a clone of ci-tasks, `invoke` has the same commands.
"""
_NOX = """\
## After nox's `--`

`nox -s LABEL -- …` takes parts of row names, and these options of [`remote`](#ci-tasks-remote):
"""
_COMMENT = re.compile(r" {2,}")  # between a call and what it is for


def page() -> str:
    return "\n".join([_INTRODUCTION, *_overview(), "", *_every_command(), "", *_groups(), *_nox()]) + "\n"


def _overview() -> list[str]:
    rows = [(_link(command.name), command.summary) for command in _in_order()]
    return _table(("command", "what it does"), rows)


def _every_command() -> list[str]:
    return [
        "## Options of every command",
        "",
        *_table(("option", "meaning"), _option_rows(PROGRAM_OPTIONS)),
    ]


def _groups() -> Iterator[str]:
    heading = ""
    for command in _in_order():
        if command.heading != heading:
            heading = command.heading
            yield from (f"## {heading}", "")
        yield from _section(command)


def _in_order() -> list[Command]:
    """As `ci-tasks` lists them: by heading, those of the core first."""
    headings = [*HEADINGS, *(command.heading for command in commands())]
    return sorted(commands(), key=lambda command: headings.index(command.heading))


def _section(command: Command) -> Iterator[str]:
    function = registry.load(command.function)
    options = options_of(options_class(function))
    examples, *paragraphs = help.doc_of(function).split("\n\n")
    yield from (f"### ci-tasks {command.name}", "", command.summary, "")
    for paragraph in paragraphs:
        yield from (" ".join(paragraph.split()), "")
    yield from ("```text", f"ci-tasks {help.usage(command.name, options)}", "```", "")
    yield from _table(("argument or option", "meaning"), _option_rows(options))
    yield from ("", "```bash", *_commented(examples.splitlines()), "```", "")
    if links := "; ".join(_links(command)):
        yield from (f"{links}.", "")


def exit_codes(command: Command) -> dict[str, int]:
    """Word → exit code: what `command` adds to the codes of every command."""
    return dict(registry.load(command.exit_codes)) if command.exit_codes else {}


def _links(command: Command) -> Iterator[str]:
    if codes := exit_codes(command):
        yield "Exit codes: " + ", ".join(f"{code} {word}" for word, code in codes.items())
    for schema, alike in commands_by_schema().items():
        if command in alike:
            yield f"`--json`: [{schema}.json](../schemas/{schema}.json)"


def _nox() -> list[str]:
    accepted = {name: option for name, option in options_of(RemoteOptions).items() if option.nox}
    flags = ", ".join(f"`{flag_of(name, option)}`" for name, option in accepted.items())
    sessions: dict[str, list[str]] = {}
    for session in (session for feature in registry.features() for session in feature.nox_sessions):
        sessions.setdefault(session.command_line[0], []).append(f"`{session.name}`")
    lines = [f"The sessions {', '.join(names)} take the options of {_link(name)}." for name, names in sessions.items()]
    return [_NOX, f"{flags}.", *(line for each in lines for line in ("", each))]


def _link(name: str) -> str:
    return f"[`{name}`](#ci-tasks-{name})"


def _option_rows(options: Mapping[str, Option]) -> Iterator[tuple[str, str]]:
    """(as typed with its value, meaning) of each argument and option, arguments first."""
    for name, option in sorted(options.items(), key=lambda item: not item[1].positional):
        if not option.refused:
            yield f"`{typed(name, option)}`", "; ".join([option.full_help, *_limits(name, option, options)])


def _limits(name: str, option: Option, options: Mapping[str, Option]) -> Iterator[str]:
    """Whether it is required, and which options it needs or cannot stand beside."""
    if option.required and not option.positional:
        yield "required"
    if option.needs:
        yield f"needs `{flag_of(option.needs, options[option.needs])}`"
    excluded = [other for other, _, _ in option.excludes if other in options]
    excluded += [other for other in options if any(each[0] == name for each in options[other].excludes)]
    if excluded:
        yield "not with " + ", ".join(f"`{flag_of(other, options[other])}`" for other in dict.fromkeys(excluded))


def _commented(lines: list[str]) -> list[str]:
    """Example calls whose explanations, behind two spaces or more, become comments in one column."""
    parts = [_COMMENT.split(line, maxsplit=1) for line in lines]
    width = max((len(part[0]) for part in parts if len(part) > 1), default=0)
    return [f"{part[0].ljust(width)}  # {part[1]}" if len(part) > 1 else part[0] for part in parts]


def _table(head: tuple[str, str], rows: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> list[str]:
    cells = [tuple(cell.replace("|", r"\|") for cell in row) for row in rows]
    return [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {first} | {second} |" for first, second in cells)]


def main() -> None:
    path = Path(sys.argv[1]) if sys.argv[1:] else PAGE
    path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
