"""The text of `ci-tasks`, `--list` and `--help COMMAND`: the commands in groups, and the arguments, options and
examples of one command. `ci_tasks.cli.program` prints it in columns."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping

from ci_tasks.cli.options import Option, flag_of
from ci_tasks.registry import Command

Columns = list[tuple[str, "str | None"]]

CORE_OPTIONS: Columns = [
    ("-h, --help [COMMAND]", "show the options of a command, with examples"),
    ("--list", "list the commands"),
    ("--debug", "write a debug log and print the path of the file"),
    ("--print-completion-script SHELL", "print the completion script for bash, zsh or fish"),
    ("--version", "print the version"),
]
_INDENT = "  "
_NOTE = re.compile(r" {2,}(?=\S)")  # between a call and what it is for
_CALL = re.compile(r"(^|\| |^\S+=\S+ )(?:ci-tasks|invoke)(?= )", re.MULTILINE)


def groups(commands: Iterable[Command], headings: Iterable[str]) -> dict[str, Columns]:
    """Heading → (command, summary); the first column has the same width in all groups. Other headings come last."""
    commands = list(commands)
    width = max(len(command.name) for command in commands)
    grouped: dict[str, Columns] = {heading: [] for heading in headings}
    for command in commands:
        grouped.setdefault(command.heading, []).append((command.name.ljust(width), command.summary))
    return {heading: pairs for heading, pairs in grouped.items() if pairs}


def usage(name: str, options: Mapping[str, Option]) -> str:
    """`run LABEL [OPTIONS]`, optional arguments in brackets."""
    positional = [(flag_of(key, option), option) for key, option in options.items() if option.positional]
    arguments = [flag if option.required else f"[{flag}]" for flag, option in positional]
    return " ".join([name, *arguments, "[OPTIONS]"])


def columns(options: Mapping[str, Option]) -> dict[str, Columns]:
    """Heading → (argument or option with the name of its value, help), in the order of declaration."""
    visible = [(flag_of(key, declared), declared) for key, declared in options.items() if not declared.refused]
    sections: dict[str, Columns] = {"Arguments": [], "Options": []}
    for flag, option in visible:
        takes_value = not option.positional and option.kind is not bool
        heading = "Arguments" if option.positional else "Options"
        sections[heading].append((f"{flag} {option.metavar}" if takes_value else flag, option.full_help))
    return {heading: pairs for heading, pairs in sections.items() if pairs}


def description(command: Command, function: Callable[..., int], program: str, width: int) -> list[str]:
    """The command's summary, examples and exit codes, in `width` columns. Examples call `program`."""
    text = _CALL.sub(rf"\g<1>{program}", inspect.cleandoc(function.__doc__ or ""))
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


def typed_program(argv0: str, name: str) -> str:
    """How a person calls our program `name` after having typed `argv0`, it or one beside it: `.venv/bin/ci-tasks` where
    PATH does not lead to it."""
    beside = os.path.join(os.path.dirname(argv0), name)
    if os.sep not in argv0 or not os.path.isfile(beside):
        return name
    import shutil

    on_path = shutil.which(name)
    return name if on_path and os.path.samefile(on_path, beside) else shlex.quote(beside)
