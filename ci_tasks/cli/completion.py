"""Shell completion: the candidates at the cursor, and the scripts for bash, zsh and fish.

Commands and options are those of the parser. Values come from where the command itself will read them: labels and rows
from the checkout's workflow, hosts and pools from hosts.yaml, runs from their directory. An error gives no candidates
and no message, and the shell then offers files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext

from ci_tasks import debug_log, registry
from ci_tasks.cli.options import Option
from ci_tasks.cli.parser import FindCommand, OptionArgument, argument_of, is_option, next_positional
from ci_tasks.errors import UsageError

if TYPE_CHECKING:
    from ci_tasks.run.checkout_source import CheckoutSource

Given = Mapping[str, str]
"""The options and positionals before the cursor: name → value."""

_NEWEST = 20  # batches that are offered before a year is typed
_YEAR = re.compile(r"\d{4}")
# In a row's name, which is the checkout's: what no shell takes for more than a word. Some shells insert candidates as
# they are, and the line runs at the next Enter.
_PLAIN_PART = re.compile(r"[\w./:@%+=][\w./:@%+=-]*")


def candidates(
    before: Sequence[str], current: str, core: ParserContext, find_command: FindCommand, names: Iterable[str]
) -> list[str]:
    """The words that begin with `current` and are valid after the words `before`; sorted, without duplicates."""
    try:
        state = _State(core, find_command, names)
        for word in before:
            state.consume(word)
        offered = state.candidates(current)
    except Exception:  # such as an invalid workflow or hosts.yaml, or no git
        debug_log.LOGGER.debug("completion", exc_info=True)
        return []
    return sorted({word for word in offered if word.startswith(current)})


def candidates_without_cursor(
    argv: Sequence[str], core: ParserContext, find_command: FindCommand, names: Iterable[str]
) -> list[str]:
    """As `candidates`, for invoke's own script, which does not pass the cursor's position: if the last word is
    complete, the next one is completed. The script itself filters by the typed text."""
    names = list(names)
    *before, last = argv or [""]
    offered = candidates(before, last, core, find_command, names)
    if last in offered or not offered:
        offered = candidates([*before, last], "", core, find_command, names)
    return offered


class _State:
    """The meaning of the words so far: the command, its values, and the option whose value comes next."""

    def __init__(self, core: ParserContext, find_command: FindCommand, names: Iterable[str]) -> None:
        self.core, self.find_command, self.names = core, find_command, names
        self.context = core
        self.given: dict[str, str] = {}
        self.argument: Argument | None = None

    def consume(self, word: str) -> None:
        if word == "=" and self.argument is not None:  # bash splits --host=a into three words
            return
        if self.argument is not None and not (self.argument.optional and word.startswith("-")):
            self.given[str(self.argument.name)] = word
            self.argument = None
        elif is_option(word):
            name, equals, value = word.partition("=")
            argument = argument_of(name, self.context, self.core)
            assert argument is not None
            self.given[str(argument.name)] = value
            self.argument = argument if argument.takes_value and not equals else None
        elif positional := next_positional(self.context):
            positional.value = word
            self.given[str(positional.name)] = word
        else:
            command = self.find_command(word)
            assert command is not None
            self.context, self.given = command, {}

    def candidates(self, current: str) -> Iterable[str]:
        if self.argument is not None:
            return self.values(self.argument, current.removeprefix("="), current[: current.startswith("=")])
        if current.startswith("-"):
            name, equals, value = current.partition("=")
            argument = argument_of(name, self.context)
            if equals and argument is not None:
                return self.values(argument, value, f"{name}=")
            return [flag for flag in self.flags() if flag.startswith("--")]
        if positional := next_positional(self.context):
            return self.values(positional, current, "")
        return self.names if self.context is self.core else self.flags()

    def flags(self) -> list[str]:
        """The options that are still valid: those not given yet, and those that may be repeated."""
        flags = self.context.flags
        return [
            name
            for name, one in flags.items()
            if (one.name not in self.given or one.kind is list) and not (one.positional or _option(one).refused)
        ]

    def values(self, argument: Argument, typed: str, head: str) -> Iterable[str]:
        option = _option(argument)
        offered = option.choices
        if argument.name == "print-completion-script":
            offered = tuple(SCRIPTS)
        elif option.complete:
            offered = registry.load(option.complete)(self.given, typed)
        others = typed[: typed.rfind(",") + 1] if option.commas else ""
        return [f"{head}{others}{candidate}" for candidate in offered if candidate not in others.split(",")]


def _option(argument: Argument) -> Option:
    return argument.option if isinstance(argument, OptionArgument) else Option()


def labels(arguments: Given, _typed: str) -> Iterable[str]:
    from ci_tasks.run.outline import outline

    source = _source(arguments)
    return [*outline(source), *([source.suite.changed.label] if source.suite.changed else [])]


def rows(arguments: Given, _typed: str) -> Iterable[str]:
    """Parts of the names of the label's rows that need no quotes: the file's name, and the mode without its
    brackets."""
    from ci_tasks.run.outline import outline

    source = _source(arguments)
    row_names = outline(source)[source.label_of(arguments["label"])]
    return [part for row in row_names for part in _PLAIN_PART.findall(row)]


def _source(arguments: Given) -> CheckoutSource:
    from ci_tasks.run.checkout_source import open_source

    return open_source(arguments.get("repo"), arguments.get("rev"), arguments.get("workflow"))


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
    return ["last", *(newest if _YEAR.match(typed) else newest[:_NEWEST])]


def statuses(_given: Given, _typed: str) -> Iterable[str]:
    from ci_tasks.records import STATUSES

    return STATUSES


def script(shell: str) -> str:
    """The script that the shell evaluates. Raises UsageError for an unsupported shell."""
    if shell not in SCRIPTS:
        raise UsageError(f"completion for shell {shell!r} is not supported", hint=f"valid: {', '.join(SCRIPTS)}")
    return SCRIPTS[shell]


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
    "fish": """\
# ci-tasks --print-completion-script fish > ~/.config/fish/completions/ci-tasks.fish
function __ci_tasks
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l found (ci-tasks --complete -- $before[2..-1] "$current" 2> /dev/null | string match -v '')
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete --command ci-tasks --no-files --arguments '(__ci_tasks)'
""",
}
