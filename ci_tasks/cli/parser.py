"""A command line → the values of options, with errors that name the valid words. Completion reads the same words.

Options are as declared: `jobs [LABEL]` is an optional positional, and of two values for one option none is dropped.
(argparse does neither, and to import it takes longer than to read a line.)
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ci_tasks import registry
from ci_tasks.cli.commands import command_names, find
from ci_tasks.cli.options import Option, dashed, options_class, options_of, switch, text
from ci_tasks.errors import UsageError, nearest, shortened

_LONGEST = 200  # characters of a word in a message
LIST_HINT = "`ci-tasks --list` lists the commands"
PROGRAM_OPTIONS = {
    "help": text("show the options of a command, with examples", "[COMMAND]", short="-h"),
    "list": switch("list the commands", short="-l"),
    "debug": switch("write a debug log and print the path of the file"),
    "print_completion_script": text("print the completion script for bash or zsh", "SHELL", choices=("bash", "zsh")),
    "version": switch("print the version", short="-V"),
}


class ParsedCommand:
    """A command, or the program itself, whose name is "": its options, and the values given so far, by field name."""

    def __init__(self, name: str, options: Mapping[str, Option]) -> None:
        self.name, self.options = name, options
        self.values: dict[str, Any] = {}
        self.flags = {f"--{dashed(field)}": field for field, option in options.items() if not option.positional}
        self.flags.update({option.short: field for field, option in options.items() if option.short})

    def next_positional(self) -> str | None:
        """The positional that takes the next word, if any."""
        positional = (field for field, option in self.options.items() if option.positional)
        return next((field for field in positional if field not in self.values or self.is_repeatable(field)), None)

    def is_repeatable(self, field: str) -> bool:
        return self.options[field].kind is tuple

    def add(self, field: str, value: Any) -> None:
        if self.is_repeatable(field):
            self.values.setdefault(field, []).append(value)
        else:
            self.values[field] = value


class CommandLine:
    """The words so far: the options of the `program`, or of another first command, and the `current` command. An
    option that still needs its value is `open`: its command, field and flag."""

    def __init__(self, program: ParsedCommand | None = None) -> None:
        self.program = self.current = program or ParsedCommand("", PROGRAM_OPTIONS)
        self.open: tuple[ParsedCommand, str, str] | None = None
        self._takes_options = True

    def read(self, word: str) -> None:
        """Raises UsageError."""
        if self.open is not None:
            self._read_value(*self.open, word)
        elif word == "--" and self._takes_options:
            self._takes_options = False  # what follows are words, whatever they look like
        elif self._takes_options and word.startswith("-") and word != "-":  # standard input
            self._read_option(word)
        else:
            self._read_word(word)

    def end(self) -> None:
        if self.open is not None:
            raise UsageError(f"{self._head()}{self.open[2]} needs a value", hint=self._help_hint())

    def _read_word(self, word: str) -> None:
        if field := self.current.next_positional():
            self.current.add(field, word)
        elif self.current is not self.program:
            quoted = shlex.quote(word)
            hints = {
                "--log": f"`--log {quoted}` names a saved log",
                "--only": f"one label at a time; `--only {quoted}` selects rows by a part of their names",
            }
            hint = next((hints[flag] for flag in hints if flag in self.current.flags), self._help_hint())
            raise UsageError(f"{self._head()}unexpected argument {_quoted(word)}", hint=hint)
        elif self.program.values.get("help") is True:
            self.program.values["help"] = word
        elif (command := find(word)) is not None:
            self.current = ParsedCommand(word, options_of(options_class(registry.load(command.function))))
        else:
            raise unknown_command(word)

    def _read_option(self, word: str) -> None:
        flag, equals, value = word.partition("=")
        owner = self.current if flag in self.current.flags else self.program
        field = owner.flags.get(flag) or self._unknown_option(flag)
        option = owner.options[field]
        if field == "help":
            owner.values[field] = value or self.current.name or True
        elif option.kind is bool:
            if equals:
                raise UsageError(f"{self._head()}{flag} takes no value, not {_quoted(value)}", hint=self._help_hint())
            owner.values[field] = True
        elif field in owner.values and not owner.is_repeatable(field):
            hint = f"separate several values with commas: {flag} A,B" if option.commas else self._help_hint()
            raise UsageError(f"{self._head()}{flag} is given twice", hint=hint)
        elif equals:
            owner.add(field, value)
        else:
            self.open = owner, field, flag

    def _read_value(self, owner: ParsedCommand, field: str, flag: str, word: str) -> None:
        if word in self.current.flags or word in self.program.flags:
            self.end()
        if word.startswith("--"):
            hint = f"if that is the value: `{flag}={shlex.quote(word)}`"
            raise UsageError(f"{self._head()}{flag} needs a value, and {_quoted(word)} looks like an option", hint=hint)
        owner.add(field, word)
        self.open = None

    def _unknown_option(self, flag: str) -> NoReturn:
        suggestion = _suggestion(flag, [name for name in self.current.flags if name.startswith("--")])
        message = f"{self._head()}unknown option {shortened(flag, _LONGEST)}{suggestion}"
        raise UsageError(message, hint=self._help_hint())

    def _head(self) -> str:
        return f"{self.current.name}: " if self.current.name else ""

    def _help_hint(self) -> str:
        name = self.current.name
        if not name:
            return LIST_HINT
        return f"`{name if name.startswith('nox ') else f'ci-tasks {name}'} --help` lists its options"


def parse(words: Sequence[str], program: ParsedCommand | None = None) -> CommandLine:
    """A whole line. Raises UsageError."""
    line = CommandLine(program)
    for word in words:
        line.read(word)
    line.end()
    return line


def unknown_command(word: str) -> UsageError:
    return UsageError(f"unknown command {_quoted(word)}{_suggestion(word, command_names())}", hint=LIST_HINT)


def _quoted(word: str) -> str:
    return repr(shortened(word, _LONGEST))


def _suggestion(word: str, valid: Iterable[str]) -> str:
    """The end of a message about `word`. Stricter than for labels, since these words are short."""
    by_name = {name.lstrip("-"): name for name in valid}
    match = nearest(word.lstrip("-"), by_name, cutoff=0.6)
    return f"; did you mean {by_name[match]!r}?" if match else ""
