"""A command line → invoke's parser contexts, with errors that name the valid words.

Invoke's own parser has no optional positional (`jobs [LABEL]`), exits with 1, takes a misspelt flag for a label and
silently keeps the last of two values. It has no hook to change that. So the line is parsed here, into the
`ParserContext` and `Argument` objects that the rest of invoke works with.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.parser.parser import ParseResult

from ci_tasks.cli.options import Option, dashed, options_of
from ci_tasks.errors import UsageError, nearest

FindCommand = Callable[[str], "ParserContext | None"]


class OptionArgument(Argument):
    """An argument with the option that it was made from."""

    def __init__(self, name: str, option: Option) -> None:
        kinds: dict[type[Any], tuple[type[Any], Any]] = {bool: (bool, False), tuple: (list, [])}
        kind, default = kinds.get(option.kind, (str, None))
        flag = dashed(name)
        super().__init__(
            name=flag,
            kind=kind,
            default=default,
            help=option.full_help,
            positional=option.positional,
            attr_name=name if name != flag else None,
        )
        self.option = option


def arguments(options: type[Any]) -> list[Argument]:
    """Invoke's arguments for a command's options."""
    return [OptionArgument(name, option) for name, option in options_of(options).items()]


def parse(argv: Sequence[str], core: ParserContext, find_command: FindCommand, names: Iterable[str]) -> ParseResult:
    """The core context, and a context for each command of the line. Raises UsageError."""
    return _ArgvParser(core, find_command, names).parse(argv)


def is_option(word: str) -> bool:
    """Whether a word is an option; `-` alone is standard input."""
    return word.startswith("-") and word != "-"


def argument_of(flag: str, *contexts: ParserContext) -> Argument | None:
    """The argument of `flag` in the first context that has it. (`get` of invoke's Lexicon ignores short names.)"""
    argument: Argument | None = next((context.flags[flag] for context in contexts if flag in context.flags), None)
    return argument


def next_positional(context: ParserContext) -> Argument | None:
    """The positional that takes the next word, if any."""
    free = (argument for argument in context.positional_args if argument.raw_value is None or argument.kind is list)
    return next(free, None)


class _ArgvParser:
    def __init__(self, core: ParserContext, find_command: FindCommand, names: Iterable[str]) -> None:
        self.core, self.find_command, self.names = core, find_command, names
        self.context = core
        self.result = ParseResult([core])

    def parse(self, argv: Sequence[str]) -> ParseResult:
        rest = iter(argv)
        for word in rest:
            if word == "--":
                self.result.remainder = " ".join(rest)
                break
            if is_option(word):
                self.read_option(word, rest)
            else:
                self.read_word(word)
        return self.result

    def read_word(self, word: str) -> None:
        positional = next_positional(self.context)
        if positional is not None:
            positional.value = word
        elif (command := self.find_command(word)) is not None:
            self.context = command
            self.result.append(command)
        elif self.context is self.core:
            nearest = "" if word in _CORE_OPTION_OF else suggestion(word, self.names)
            raise UsageError(f"unknown command {word!r}{nearest}", hint=_CORE_OPTION_OF.get(word, LIST_HINT))
        else:
            raise UsageError(f"{self.context.name}: unexpected argument {word!r}", hint=self.option_for(word))

    def option_for(self, word: str) -> str:
        """The next step for an argument too many: the option that was probably meant to take it."""
        quoted, flags = shlex.quote(word), self.context.flags
        if "--log" in flags:
            return f"`--log {quoted}` names a saved log"
        if "--only" in flags:
            return f"one label at a time; `--only {quoted}` selects rows by a part of their names"
        return f"`--host {quoted}` names a host" if "--host" in flags else self.help_hint()

    def read_option(self, word: str, rest: Iterator[str]) -> None:
        flag, equals, value = word.partition("=")
        argument = argument_of(flag, self.context, self.core) or self.unknown_option(flag)
        if argument.name == "help" and self.context is not self.core:
            argument.set_value(self.context.name, cast=False)
        elif not argument.takes_value:
            argument.set_value(True)
        elif equals:
            self.set_value(argument, flag, value)
        else:
            self.set_value(argument, flag, self.next_value(argument, flag, rest))

    def next_value(self, argument: Argument, flag: str, rest: Iterator[str]) -> Any:
        """The word after an option; True for an option of invoke that needs none, such as --list."""
        value = next(rest, None)
        if argument.optional and (value is None or is_option(value)):
            if value is not None:
                self.read_option(value, rest)
            return True
        if value is None or value in self.context.flags or value in self.core.flags:
            raise UsageError(f"{flag} needs a value", hint=self.help_hint())
        return value

    def set_value(self, argument: Argument, flag: str, value: Any) -> None:
        if argument.raw_value is not None and argument.kind is not list:
            option = argument.option if isinstance(argument, OptionArgument) else Option()
            hint = f"separate several values with commas: {flag} A,B" if option.commas else ""
            raise UsageError(f"{self.context.name}: {flag} is given twice", hint=hint or self.help_hint())
        argument.set_value(value, cast=isinstance(value, str))

    def unknown_option(self, flag: str) -> NoReturn:
        valid = [name for name in self.context.flags if name.startswith("--")]
        head = f"{self.context.name}: " if self.context.name else ""
        raise UsageError(f"{head}unknown option {flag}{suggestion(flag, valid)}", hint=self.help_hint())

    def help_hint(self) -> str:
        name = self.context.name
        if not name:
            return LIST_HINT
        return f"`{name if name.startswith('nox ') else f'ci-tasks {name}'} --help` lists its options"


LIST_HINT = "`ci-tasks --list` lists the commands"
# Commands that other programs have, and ours does as an option.
_CORE_OPTION_OF = {
    "help": "`ci-tasks --help` lists the commands, `ci-tasks --help COMMAND` the options of one",
    "version": "`ci-tasks --version` prints the version",
    "completion": "`ci-tasks --print-completion-script SHELL` prints the script for bash, zsh or fish",
}


def suggestion(word: str, valid: Iterable[str]) -> str:
    """The end of a message about `word`. Stricter than for labels, since these words are short."""
    by_name = {name.lstrip("-"): name for name in valid}
    match = nearest(word.lstrip("-"), by_name, cutoff=0.6)
    return f"; did you mean {by_name[match]!r}?" if match else ""
