"""A command line → the values of options by command, with errors that name the valid words.

Options are as declared: `jobs [LABEL]` is an optional positional, and of two values for one option none is dropped.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    "print_completion_script": text(
        "print the completion script for bash, zsh or fish", "SHELL", choices=("bash", "zsh", "fish")
    ),
    "version": switch("print the version", short="-V"),
}
# Commands that other programs have, and ours does as an option.
_PROGRAM_OPTION_OF = {
    "help": "`ci-tasks --help` lists the commands, `ci-tasks --help COMMAND` the options of one",
    "version": "`ci-tasks --version` prints the version",
    "completion": "`ci-tasks --print-completion-script SHELL` prints the script for bash, zsh or fish",
}


class ParsedCommand:
    """A command of the line, or the program itself, whose name is "": its options, and the values given so far, both by
    field name."""

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

    def takes_value(self, field: str) -> bool:
        """Whether the next word is its value; the one after --help may be."""
        return self.options[field].kind is not bool and field != "help"

    def add(self, field: str, value: Any) -> None:
        if self.is_repeatable(field):
            self.values.setdefault(field, []).append(value)
        else:
            self.values[field] = value


def parsed_program() -> ParsedCommand:
    return ParsedCommand("", PROGRAM_OPTIONS)


def parsed_command(name: str) -> ParsedCommand | None:
    """That of the command of this name, whose module is loaded; None if there is no such command."""
    command = find(name)
    return ParsedCommand(name, options_of(options_class(registry.load(command.function)))) if command else None


def parse(words: Sequence[str], first: ParsedCommand | None = None) -> list[ParsedCommand]:
    """The program, or `first`, and each command of the line. Raises UsageError."""
    return _Parser(first or parsed_program()).parse(words)


def is_option(word: str) -> bool:
    """Whether a word is an option; `-` alone is standard input."""
    return word.startswith("-") and word != "-"


class _Parser:
    def __init__(self, first: ParsedCommand) -> None:
        self.first = self.current = first
        self.parsed = [first]

    def parse(self, words: Sequence[str]) -> list[ParsedCommand]:
        rest = iter(words)
        for word in rest:
            if word == "--":
                break
            if is_option(word):
                self.read_option(word, rest)
            else:
                self.read_word(word)
        for word in rest:  # behind --, whatever they look like
            self.read_word(word)
        return self.parsed

    def read_word(self, word: str) -> None:
        if field := self.current.next_positional():
            self.current.add(field, word)
        elif self.current is self.first and self.first.values.get("help") is True:
            self.first.values["help"] = word
        elif (command := parsed_command(word)) is not None:
            self.current = command
            self.parsed.append(command)
        elif self.current is self.first:
            raise unknown_command(word)
        else:
            raise UsageError(f"{self.head()}unexpected argument {_quoted(word)}", hint=self.option_for(word))

    def option_for(self, word: str) -> str:
        """The next step for an argument too many: the option that was probably meant to take it."""
        quoted, flags = shlex.quote(word), self.current.flags
        if "--log" in flags:
            return f"`--log {quoted}` names a saved log"
        if "--only" in flags:
            return f"one label at a time; `--only {quoted}` selects rows by a part of their names"
        return f"`--host {quoted}` names a host" if "--host" in flags else self.help_hint()

    def read_option(self, word: str, rest: Iterator[str]) -> None:
        flag, equals, value = word.partition("=")
        owner = self.current if flag in self.current.flags else self.first
        field = owner.flags.get(flag) or self.unknown_option(flag)
        if field == "help":
            owner.values[field] = value or self.current.name or True
        elif not owner.takes_value(field):
            if equals:
                hint = f"leave {flag} out where it is not to hold"
                raise UsageError(f"{self.head()}{flag} takes no value, not {_quoted(value)}", hint=hint)
            owner.values[field] = True
        elif field in owner.values and not owner.is_repeatable(field):
            hint = f"separate several values with commas: {flag} A,B" if owner.options[field].commas else ""
            raise UsageError(f"{self.head()}{flag} is given twice", hint=hint or self.help_hint())
        else:
            owner.add(field, value if equals else self.next_value(flag, rest))

    def next_value(self, flag: str, rest: Iterator[str]) -> str:
        value = next(rest, None)
        if value is None or value in self.current.flags or value in self.first.flags:
            raise UsageError(f"{self.head()}{flag} needs a value", hint=self.help_hint())
        if value.startswith("--"):
            hint = f"if that is the value: `{flag}={shlex.quote(value)}`"
            raise UsageError(f"{self.head()}{flag} needs a value, and {_quoted(value)} looks like an option", hint=hint)
        return value

    def unknown_option(self, flag: str) -> NoReturn:
        valid = [name for name in self.current.flags if name.startswith("--")]
        suggestion = _suggestion(flag, valid)
        is_commands = not self.current.name and not suggestion
        hint = f"{LIST_HINT}; their options stand behind them" if is_commands else self.help_hint()
        raise UsageError(f"{self.head()}unknown option {_shortened(flag)}{suggestion}", hint=hint)

    def head(self) -> str:
        return f"{self.current.name}: " if self.current.name else ""

    def help_hint(self) -> str:
        name = self.current.name
        if not name:
            return LIST_HINT
        return f"`{name if name.startswith('nox ') else f'ci-tasks {name}'} --help` lists its options"


def _shortened(word: str) -> str:
    return shortened(word, _LONGEST)


def _quoted(word: str) -> str:
    return repr(_shortened(word))


def unknown_command(word: str) -> UsageError:
    hint = _PROGRAM_OPTION_OF.get(word)
    return UsageError(
        f"unknown command {_quoted(word)}{'' if hint else _suggestion(word, command_names())}", hint=hint or LIST_HINT
    )


def _suggestion(word: str, valid: Iterable[str]) -> str:
    """The end of a message about `word`. Stricter than for labels, since these words are short."""
    by_name = {name.lstrip("-"): name for name in valid}
    match = nearest(word.lstrip("-"), by_name, cutoff=0.6)
    return f"; did you mean {by_name[match]!r}?" if match else ""
