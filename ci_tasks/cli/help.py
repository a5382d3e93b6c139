"""The text of `ci-tasks`, `--list` and `--help COMMAND`: the commands in groups, and the arguments, options and
examples of one command."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping

from ci_tasks import registry
from ci_tasks.cli.commands import HEADINGS, command_names, commands, find
from ci_tasks.cli.options import Option, flag_of, options_class, options_of, typed
from ci_tasks.cli.parser import PROGRAM_OPTIONS, unknown_command
from ci_tasks.registry import Command
from ci_tasks.safe_output import terminal_width

Columns = list[tuple[str, str]]

_INDENT = "  "
_GAP = 3
_NOTE = re.compile(r" {2,}(?=\S)")  # between a call and what it is for
_CALL = re.compile(r"(^|\| |^\S+=\S+ )(?:ci-tasks|invoke)(?= )", re.MULTILINE)


def overview(program: str = "") -> Iterator[str]:
    """All commands; with how `program` is called and its own options, where it is named."""
    if program:
        yield from (f"Usage: {program} COMMAND [OPTIONS]", "")
    width = _width()
    yield from _sections(_groups(), width)
    if program:
        yield from _sections(columns(PROGRAM_OPTIONS), width)


def of_command(name: str, program: str) -> Iterator[str]:
    """Raises UsageError where there is no such command."""
    command = find(name)
    if command is None:
        raise unknown_command(name)
    function, width = registry.load(command.function), _width()
    options = options_of(options_class(function))
    yield from (f"Usage: {program} {usage(name, options)}", "")
    yield from (*description(command, function, program, width), "")
    yield from _sections(columns(options), width)


def of_session(name: str, options: Mapping[str, Option]) -> Iterator[str]:
    """What a session of nox accepts after `--`."""
    yield from (f"Usage: {usage(name, options)}", "")
    yield from _sections(columns(options), _width())


def _width() -> int:
    return terminal_width() or 80


def _groups() -> dict[str, Columns]:
    """Heading → (command, summary); the first column has the same width in all groups. Other headings come last."""
    width = max(map(len, command_names()))
    grouped: dict[str, Columns] = {heading: [] for heading in HEADINGS}
    for command in commands():
        grouped.setdefault(command.heading, []).append((command.name.ljust(width), command.summary))
    return {heading: pairs for heading, pairs in grouped.items() if pairs}


def usage(name: str, options: Mapping[str, Option]) -> str:
    """`run LABEL [OPTIONS]`, optional arguments in brackets."""
    positional = [(flag_of(key, option), option) for key, option in options.items() if option.positional]
    arguments = [flag if option.required else f"[{flag}]" for flag, option in positional]
    return " ".join([name, *arguments, "[OPTIONS]"])


def columns(options: Mapping[str, Option]) -> dict[str, Columns]:
    """Heading → (argument or option with the name of its value, help), in the order of declaration."""
    sections: dict[str, Columns] = {"Arguments": [], "Options": []}
    for name, option in options.items():
        if not option.refused:
            heading = "Arguments" if option.positional else "Options"
            sections[heading].append((typed(name, option), option.full_help))
    return {heading: pairs for heading, pairs in sections.items() if pairs}


def _sections(columns_by_heading: Mapping[str, Columns], width: int) -> Iterator[str]:
    """The lines of all columns below their headings, in `width` columns of the terminal."""
    for heading, columns in columns_by_heading.items():
        yield from (f"{heading}:", "")
        first = max(len(left) for left, _ in columns) + len(_INDENT) + _GAP
        for left, right in columns:
            head = f"{_INDENT}{left}".ljust(first)
            for line in _wrapped(right, max(width - 1 - first, 1)) or [""]:
                yield f"{head}{line}".rstrip()
                head = " " * first
        yield ""


def description(command: Command, function: Callable[..., int], program: str, width: int) -> list[str]:
    """The command's summary, examples and exit codes, in `width` columns. Examples call `program`."""
    text = _CALL.sub(rf"\g<1>{program}", doc_of(function))
    examples, *paragraphs = text.split("\n\n")
    width -= len(_INDENT)
    lines = [*_wrapped(command.summary, width), "", *_examples(examples.splitlines(), width)]
    for paragraph in paragraphs:
        lines += ["", *_wrapped(paragraph, width)]
    return [f"{_INDENT}{line}".rstrip() for line in "\n".join(lines).rstrip().split("\n")]


def _examples(lines: list[str], width: int) -> Iterator[str]:
    """A call keeps its line, since it is pasted; where what it is for does not fit beside one, it stands below it."""
    fits = all(len(line) <= width or not _NOTE.search(line) for line in lines)
    for line in lines:
        call, *note = [line] if fits else _NOTE.split(line, maxsplit=1)
        yield call
        yield from (f"{_INDENT * 2}{part}" for text in note for part in _wrapped(text, width - 2 * len(_INDENT)))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


def doc_of(function: Callable[..., int]) -> str:
    """The examples of a command, and paragraphs about it."""
    return textwrap.dedent(function.__doc__ or "").strip()
