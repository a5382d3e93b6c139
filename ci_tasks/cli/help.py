"""The text of `ci-tasks`, `--list` and `--help COMMAND`: the commands in groups, and the arguments, options and
examples of one command."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence

from ci_tasks import registry
from ci_tasks.cli.commands import HEADINGS, command_names, commands, find
from ci_tasks.cli.options import Option, flag_of, options_class, options_of, typed
from ci_tasks.cli.parser import PROGRAM_OPTIONS, unknown_command
from ci_tasks.registry import Command
from ci_tasks.safe_output import terminal_width

_INDENT = "  "
_GAP = 3
_NOTE = re.compile(r" {2,}(?=\S)")  # between a call and what it is for


def overview(*, with_options: bool, columns: int = 0) -> Iterator[str]:
    """All commands; with how the program is called and its own options, if they are asked for. Text has the terminal's
    width unless `columns` are named."""
    if with_options:
        yield from ("Usage: ci-tasks COMMAND [OPTIONS]", "")
    width = max(map(len, command_names()))  # the same in all groups
    grouped: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
    for command in commands():
        grouped.setdefault(command.heading, []).append((command.name.ljust(width), command.summary))
    for heading, pairs in grouped.items():
        yield from _section(heading, pairs, columns or _width())
    if with_options:
        yield from _options(PROGRAM_OPTIONS, columns or _width())


def of_command(name: str, columns: int = 0) -> Iterator[str]:
    """Raises UsageError where there is no such command."""
    command = find(name)
    if command is None:
        raise unknown_command(name)
    function = registry.load(command.function)
    options = options_of(options_class(function))
    yield from (f"Usage: ci-tasks {_usage(name, options)}", "")
    yield from (*description(command, function, columns or _width()), "")
    yield from _options(options, columns or _width())


def of_session(name: str, options: Mapping[str, Option]) -> Iterator[str]:
    """What a session of nox accepts after `--`."""
    yield from (f"Usage: {_usage(name, options)}", "")
    yield from _options(options, _width())


def _usage(name: str, options: Mapping[str, Option]) -> str:
    """`run LABEL [OPTIONS]`, optional arguments in brackets."""
    positional = [(flag_of(key, option), option) for key, option in options.items() if option.positional]
    arguments = [flag if option.required else f"[{flag}]" for flag, option in positional]
    return " ".join([name, *arguments, "[OPTIONS]"])


def description(command: Command, function: Callable[..., int], width: int) -> list[str]:
    """The command's summary, examples and exit codes, in `width` columns."""
    examples, *paragraphs = textwrap.dedent(function.__doc__ or "").strip().split("\n\n")
    width -= len(_INDENT)
    lines = [*_wrapped(command.summary, width), "", *_examples(examples.splitlines(), width)]
    for paragraph in paragraphs:
        lines += ["", *_wrapped(paragraph, width)]
    return [f"{_INDENT}{line}".rstrip() for line in "\n".join(lines).rstrip().split("\n")]


def _options(options: Mapping[str, Option], width: int) -> Iterator[str]:
    shown = {name: option for name, option in options.items() if not option.refused}
    said = [
        (option.positional, typed(name, option), "; ".join([option.full_help, *_limits(name, option, options)]))
        for name, option in shown.items()
    ]
    for heading, positional in (("Arguments", True), ("Options", False)):
        yield from _section(heading, [(left, right) for kind, left, right in said if kind == positional], width)


def _limits(name: str, option: Option, options: Mapping[str, Option]) -> Iterator[str]:
    """Whether it is required, and which options it needs or cannot stand beside."""
    if option.required and not option.positional:
        yield "required"
    if option.needs:
        yield f"needs {flag_of(option.needs, options[option.needs])}"
    excluded = [other for other, _, _ in option.excludes if other in options]
    excluded += [other for other in options if any(each[0] == name for each in options[other].excludes)]
    if excluded:
        yield "not with " + ", ".join(flag_of(other, options[other]) for other in dict.fromkeys(excluded))


def _section(heading: str, pairs: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    if not pairs:
        return
    yield from (f"{heading}:", "")
    first = max(len(left) for left, _ in pairs) + len(_INDENT) + _GAP
    for left, right in pairs:
        head = f"{_INDENT}{left}".ljust(first)
        for line in _wrapped(right, max(width - 1 - first, 1)) or [""]:
            yield f"{head}{line}".rstrip()
            head = " " * first
    yield ""


def _examples(lines: list[str], width: int) -> Iterator[str]:
    """A call keeps its line, since it is pasted; where what it is for does not fit beside one, it stands below it."""
    fits = all(len(line) <= width or not _NOTE.search(line) for line in lines)
    for line in lines:
        call, *note = [line] if fits else _NOTE.split(line, maxsplit=1)
        yield call
        yield from (f"{_INDENT * 2}{part}" for text in note for part in _wrapped(text, width - 2 * len(_INDENT)))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


def _width() -> int:
    return terminal_width() or 80
