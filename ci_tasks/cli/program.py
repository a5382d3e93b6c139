"""The programs: `ci-tasks` anywhere, and `invoke` in a directory whose tasks.py calls `replace_invoke`. A command line
→ the values of options, with errors that name the valid words; help, and candidates of completion.

Both programs have the same commands: references from the core and from every feature. Only the command that runs is
loaded. Options are as declared: `jobs [LABEL]` is an optional positional, and of two values for one option none is
dropped. (argparse does neither, and to import it takes longer than to read a line.)

Completion reads the same words. Values come from the places where the command reads them: labels and rows from the
checkout's workflow, hosts and pools from hosts.yaml, runs from their directory. An error gives no candidates and no
message, and the shell then offers files.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ci_tasks import __version__, debug_log, registry
from ci_tasks.cli import exit_handler
from ci_tasks.cli.commands import HEADINGS, command_names, commands, find
from ci_tasks.cli.options import Option, build, dashed, flag_of, options_class, options_of, switch, text, typed
from ci_tasks.errors import UsageError, nearest, shortened
from ci_tasks.safe_output import PROGRAM, terminal_width

if TYPE_CHECKING:
    from invoke.program import Program

    from ci_tasks.run.checkout_source import CheckoutSource

_GARBAGE = 50_000  # new objects between two searches for garbage: imports make many, and no garbage
Given = Mapping[str, Any]
"""The options and positionals before the cursor: name → value."""

_INDENT, _GAP = "  ", 3  # of help
_LONGEST = 200  # characters of a word in a message
_NEWEST = 20  # batches that are offered before a digit of one is typed
# In a row's name, which is the checkout's: what no shell takes for more than a word. Some shells insert candidates as
# they are, and the line runs at the next Enter.
_PLAIN_PART = re.compile(r"[\w./:@%+=][\w./:@%+=-]*")
LIST_HINT = "`ci-tasks --list` lists the commands"
PROGRAM_OPTIONS = {
    "help": text("show the options of a command, with examples", "[COMMAND]", short="-h"),
    "list": switch("list the commands", short="-l"),
    "debug": switch("write a debug log and print the path of the file"),
    "print_completion_script": text("print the completion script for bash or zsh", "SHELL", choices=("bash", "zsh")),
    "version": switch("print the version", short="-V"),
}


def main() -> NoReturn:
    """The program `ci-tasks`: the same commands, from any directory."""
    gc.set_threshold(_GARBAGE)
    code = run(sys.argv)
    gc.freeze()  # else Python looks through all loaded objects once more before it ends
    raise SystemExit(code)


def run(argv: Sequence[str]) -> int:
    """Execute a command line. Returns the exit code."""
    _, *words = debug_log.take_flag(argv)
    return exit_handler.run(lambda: _execute(words))


def _execute(words: Sequence[str]) -> int:
    if words[:1] == ["--complete"]:
        *before, current = words[2:] or [""]  # the script ends with the cursor's word
        print("\n".join(candidates(before, current)))
        return 0
    line = parse(words)
    asked, command = line.program.values, line.current
    help = asked.get("help", not asked)
    if shell := asked.get("print_completion_script"):
        option = PROGRAM_OPTIONS["print_completion_script"]
        print(SCRIPTS[option.convert("--print-completion-script", shell)], end="")
    elif "version" in asked:
        print(f"{PROGRAM} {__version__}")
    elif command is not line.program and "help" not in asked and "list" not in asked:
        return run_command(command.name, command.values)
    elif isinstance(help, str):
        print("\n".join(help_of_command(help)))
    else:
        print("\n".join(overview(with_options=help)))
    return 0


def run_command(name: str, values: Mapping[str, Any]) -> int:
    """Check the values of the command's options, by field name, and run it. Returns its exit code."""
    command = find(name)
    assert command is not None
    function = registry.load(command.function)
    try:
        code: int = function(build(options_class(function), values, name))
    except UsageError as error:
        error.hint = error.hint.replace("ci-tasks COMMAND ", f"ci-tasks {name} ")  # a command to type
        raise
    return code


def replace_invoke() -> None:
    """Make `invoke`, which is loading our tasks.py, continue as our program.

    This replaces one method, since a tasks.py can name neither another program nor another parser.
    """
    from invoke.program import Program

    def parse_tasks(program: Program) -> NoReturn:
        raise SystemExit(run(_line_of(program)))

    Program.parse_tasks = parse_tasks  # type: ignore[method-assign, assignment]


def _line_of(program: Program) -> list[str]:
    """The command line without the options that only invoke has."""
    name, asked = program.argv[0], program.args
    if asked.complete.value:  # invoke's own script; nothing runs
        return [name, "--complete"]
    own = [f"--{option}" for option in ("debug", "list") if asked[option].value]
    help = [f"--help={asked.help.value}"] if asked.help.value else []
    return [name, *own, *help, *program.core.unparsed]


# -- a command line ----------------------------------------------------------------------------------------------------


class ParsedCommand:
    """A command, or the program itself, whose name is "": its options, and the values given so far, by field name."""

    def __init__(self, name: str, options: Mapping[str, Option]) -> None:
        self.name, self.options = name, options
        self.values: dict[str, Any] = {}
        self.flags = {f"--{dashed(field)}": field for field, option in options.items() if not option.positional}
        self.flags.update({option.short: field for field, option in options.items() if option.short})

    def next_positional(self) -> str | None:
        """The positional that takes the next word, if any."""
        return next((field for field, option in self.options.items() if option.positional and self.takes(field)), None)

    def takes(self, field: str) -> bool:
        """Whether the option may still be given: it was not, or may be repeated."""
        return field not in self.values or self.options[field].kind is tuple

    def add(self, field: str, value: Any) -> None:
        if self.options[field].kind is tuple:
            value = [*self.values.get(field, ()), value]
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
            owner, field, _ = self.open
            if word.startswith("--") or word in self.current.flags or word in self.program.flags:
                self.end()
            owner.add(field, word)
            self.open = None
        elif word == "--" and self._takes_options:
            self._takes_options = False  # what follows are words, whatever they look like
        elif self._takes_options and word.startswith("-") and word != "-":  # standard input
            self._read_option(word)
        else:
            self._read_word(word)

    def end(self) -> None:
        if self.open is not None:
            owner, field, flag = self.open
            name = owner.options[field].metavar
            raise self._error(f"{flag} needs {name}", f"`{flag}={name}` takes any value, even one with dashes")

    def _read_word(self, word: str) -> None:
        if field := self.current.next_positional():
            self.current.add(field, word)
        elif self.current is not self.program:
            only = "one label at a time; `--only TEXT` selects rows by a part of their names"
            raise self._error(f"unexpected argument {_quoted(word)}", only if "--only" in self.current.flags else "")
        elif self.program.values.get("help") is True:
            self.program.values["help"] = word
        elif word == "help":
            self._read_option("--help")
        elif (command := find(word)) is not None:
            self.current = ParsedCommand(word, options_of(options_class(registry.load(command.function))))
        else:
            raise unknown_command(word)

    def _read_option(self, word: str) -> None:
        flag, equals, value = word.partition("=")
        owner = self.current if flag in self.current.flags else self.program
        if flag not in owner.flags:
            suggestion = _suggestion(flag, [name for name in self.current.flags if name.startswith("--")])
            raise self._error(f"unknown option {shortened(flag, _LONGEST)}{suggestion}")
        field = owner.flags[flag]
        option = owner.options[field]
        if field == "help":
            owner.values[field] = value or self.current.name or True
        elif option.kind is bool:
            if equals:
                raise self._error(f"{flag} takes no value, not {_quoted(value)}")
            owner.values[field] = True
        elif not owner.takes(field):
            hint = f"separate several values with commas: {flag} A,B" if option.commas else ""
            raise self._error(f"{flag} is given twice", hint)
        elif equals:
            owner.add(field, value)
        else:
            self.open = owner, field, flag

    def _error(self, message: str, hint: str = "") -> UsageError:
        name = self.current.name
        if not name:
            return UsageError(message, hint=hint or LIST_HINT)
        program = "" if name.startswith("nox ") else "ci-tasks "
        return UsageError(f"{name}: {message}", hint=hint or f"`{program}{name} --help` lists its options")


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


# -- help --------------------------------------------------------------------------------------------------------------


def overview(*, with_options: bool, width: int | None = None) -> Iterator[str]:
    """All commands; with how the program is called and its own options, if they are asked for. Text has the terminal's
    width unless another one is named."""
    if with_options:
        yield from ("Usage: ci-tasks COMMAND [OPTIONS]", "")
    longest = max(map(len, command_names()))  # the same in all groups
    grouped: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
    for command in commands():
        grouped.setdefault(command.heading, []).append((command.name.ljust(longest), command.summary))
    for heading, pairs in grouped.items():
        yield from _section(heading, pairs, width)
    if with_options:
        yield from _options(PROGRAM_OPTIONS, width)


def help_of_command(name: str, width: int | None = None) -> Iterator[str]:
    """Raises UsageError if there is no such command."""
    if (command := find(name)) is None:
        raise unknown_command(name)
    function = registry.load(command.function)
    options = options_of(options_class(function))
    lines = [command.summary, "", *(line.removeprefix(" " * 4) for line in function.__doc__.strip("\n ").split("\n"))]
    yield from (f"Usage: ci-tasks {_usage(name, options)}", "", *(f"{_INDENT}{line}".rstrip() for line in lines), "")
    yield from _options(options, width)


def help_of_session(name: str, options: Mapping[str, Option]) -> Iterator[str]:
    """What a session of nox accepts after `--`."""
    yield from (f"Usage: {_usage(name, options)}", "")
    yield from _options(options)


def _usage(name: str, options: Mapping[str, Option]) -> str:
    """`run LABEL [OPTIONS]`, optional arguments in brackets."""
    positional = [(flag_of(key, option), option) for key, option in options.items() if option.positional]
    arguments = [flag if option.required else f"[{flag}]" for flag, option in positional]
    return " ".join([name, *arguments, "[OPTIONS]"])


def _options(options: Mapping[str, Option], width: int | None = None) -> Iterator[str]:
    for heading, positional in (("Arguments", True), ("Options", False)):
        pairs = [
            (typed(name, option), "; ".join([option.full_help, *_limits(name, option, options)]))
            for name, option in options.items()
            if option.positional == positional
        ]
        yield from _section(heading, pairs, width)


def _limits(name: str, option: Option, options: Mapping[str, Option]) -> Iterator[str]:
    """Whether it is required, and which options it needs or excludes."""
    if option.required and not option.positional:
        yield "required"
    if option.needs:
        yield f"needs {flag_of(option.needs, options[option.needs])}"
    excluded = [other for other in option.excludes if other in options]
    excluded += [other for other in options if name in options[other].excludes]
    if excluded:
        yield "not with " + ", ".join(flag_of(other, options[other]) for other in dict.fromkeys(excluded))


def _section(heading: str, pairs: Sequence[tuple[str, str]], width: int | None) -> Iterator[str]:
    import textwrap  # only help needs it

    if not pairs:
        return
    yield from (f"{heading}:", "")
    first = max(len(left) for left, _ in pairs) + len(_INDENT) + _GAP
    columns = max((width or terminal_width() or 80) - 1 - first, 1)
    for left, right in pairs:
        head = f"{_INDENT}{left}".ljust(first)
        for line in textwrap.wrap(right, columns, break_long_words=False, break_on_hyphens=False) or [""]:
            yield f"{head}{line}".rstrip()
            head = " " * first
    yield ""


# -- completion --------------------------------------------------------------------------------------------------------


def candidates(before: Sequence[str], current: str) -> list[str]:
    """The words that begin with `current` and are valid after the words `before`; sorted, without duplicates."""
    try:
        line = CommandLine()
        for word in before:
            if word != "=":  # bash splits --host=a into three words
                line.read(word)
        offered = list(_offered(line, current))
    except Exception:  # such as an invalid workflow or hosts.yaml, or no git
        debug_log.debug("completion", exc_info=True)
        return []
    return sorted({word for word in offered if word.startswith(current)})


def _offered(line: CommandLine, current: str) -> Iterable[str]:
    command = line.current
    if line.open is not None:
        owner, field, _ = line.open
        return _values(owner, field, current.removeprefix("="), current[: current.startswith("=")])
    flags = [flag for flag, field in command.flags.items() if command.takes(field)]
    if current.startswith("-"):
        flag, equals, value = current.partition("=")
        if equals and flag in command.flags:
            return _values(command, command.flags[flag], value, f"{flag}=")
        return [flag for flag in flags if flag.startswith("--")]
    if positional := command.next_positional():
        return _values(command, positional, current, "")
    return command_names() if command is line.program else flags


def _values(owner: ParsedCommand, field: str, typed: str, head: str) -> Iterable[str]:
    option = owner.options[field]
    offered = registry.load(option.complete)(owner.values, typed) if option.complete else option.choices
    others = typed[: typed.rfind(",") + 1] if option.commas else ""
    return [f"{head}{others}{candidate}" for candidate in offered if candidate not in others.split(",")]


def labels(given: Given, _typed: str) -> Iterable[str]:
    return _outline(given)[1]


def rows(given: Given, _typed: str) -> Iterable[str]:
    """Parts of the names of the label's rows that need no quotes: the file's name, and the mode without its
    brackets."""
    source, rows_by_label = _outline(given)
    return [part for row in rows_by_label[source.label_of(given["label"])] for part in _PLAIN_PART.findall(row)]


def _outline(given: Given) -> tuple[CheckoutSource, Mapping[str, Sequence[str]]]:
    from ci_tasks.run.checkout_source import open_source, outline

    source = open_source(given.get("repo"), given.get("rev"), given.get("workflow"))
    return source, outline(source)


def hosts(given: Given, _typed: str) -> Iterable[str]:
    from ci_tasks.run.hosts_files import open_config

    config = open_config(given.get("repo"), quiet=True)
    return [*config.hosts, *config.pools]


def runs(_given: Given, typed: str) -> Iterable[str]:
    """Batches, or the rows of a batch whose name and dot are typed."""
    from ci_tasks.results import store

    batch, dot, _ = typed.rpartition(",")[2].rpartition(".")
    if dot and (rows := store.directories(store.home() / "runs" / batch)):
        return [f"{batch}.{row}" for row in rows if row.isdecimal()]
    newest = sorted(store.batches(), reverse=True)
    return ["last", *(newest if typed[:1].isdigit() else newest[:_NEWEST])]


def statuses(_given: Given, _typed: str) -> Iterable[str]:
    from ci_tasks.records import STATUSES

    return STATUSES


# Words after the cursor are ignored. Without candidates the shell offers file names.
SCRIPTS = {
    "bash": """\
# eval "$(ci-tasks --print-completion-script bash)" in ~/.bashrc
_ci_tasks() {
    mapfile -t COMPREPLY < <(ci-tasks --complete -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" "$2" 2> /dev/null)
    [[ -n ${COMPREPLY[0]} ]] || COMPREPLY=()
}
complete -o bashdefault -o default -F _ci_tasks ci-tasks
""",
    "zsh": """\
# eval "$(ci-tasks --print-completion-script zsh)" in ~/.zshrc
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_ci_tasks() {
    local -a found
    found=("${(@f)$(ci-tasks --complete -- "${(@)words[2,CURRENT-1]}" "$PREFIX" 2> /dev/null)}")
    if [[ -n $found[1] ]]; then compadd -a found; else _files; fi
}
compdef _ci_tasks ci-tasks
""",
}
