"""Shell completion: the candidates at the cursor, and the scripts for bash, zsh and fish.

Commands and options are those of the parser. Values come from where the command itself will read them: labels and rows
from the checkout's workflow, hosts and pools from hosts.yaml, runs from their directory. An error gives no candidates
and no message, and the shell then offers files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ci_tasks import debug_log, registry
from ci_tasks.cli.commands import command_names
from ci_tasks.cli.options import Option
from ci_tasks.cli.parser import ParsedCommand, is_option, parsed_command, parsed_program
from ci_tasks.errors import UsageError

if TYPE_CHECKING:
    from ci_tasks.run.checkout_source import CheckoutSource

Given = Mapping[str, Any]
"""The options and positionals before the cursor: name → value."""

_NEWEST = 20  # batches that are offered before a year is typed
_YEAR = re.compile(r"\d{4}")
# In a row's name, which is the checkout's: what no shell takes for more than a word. Some shells insert candidates as
# they are, and the line runs at the next Enter.
_PLAIN_PART = re.compile(r"[\w./:@%+=][\w./:@%+=-]*")


def candidates(before: Sequence[str], current: str) -> list[str]:
    """The words that begin with `current` and are valid after the words `before`; sorted, without duplicates."""
    try:
        state = _State()
        for word in before:
            state.consume(word)
        offered = state.candidates(current)
    except Exception:  # such as an invalid workflow or hosts.yaml, or no git
        debug_log.LOGGER.debug("completion", exc_info=True)
        return []
    return sorted({word for word in offered if word.startswith(current)})


def candidates_without_cursor(words: Sequence[str]) -> list[str]:
    """As `candidates`, for invoke's own script, which does not pass the cursor's position: if the last word is
    complete, the next one is completed. The script itself filters by the typed text."""
    *before, last = words or [""]
    offered = candidates(before, last)
    if last in offered or not offered:
        offered = candidates([*before, last], "")
    return offered


class _State:
    """The meaning of the words so far: the command, its values, and the option whose value comes next."""

    def __init__(self) -> None:
        self.first = self.current = parsed_program()
        self.option: tuple[ParsedCommand, str] | None = None

    def consume(self, word: str) -> None:
        if self.option is not None:
            if word != "=":  # bash splits --host=a into three words
                owner, field = self.option
                owner.values[field] = word
                self.option = None
        elif is_option(word):
            flag, equals, value = word.partition("=")
            owner = self.current if flag in self.current.flags else self.first
            field = owner.flags[flag]
            owner.values[field] = value
            self.option = (owner, field) if owner.takes_value(field) and not equals else None
        elif positional := self.current.next_positional():
            self.current.values[positional] = word
        else:
            command = parsed_command(word)
            assert command is not None
            self.current = command

    def candidates(self, current: str) -> Iterable[str]:
        if self.option is not None:
            return self.values(*self.option, current.removeprefix("="), current[: current.startswith("=")])
        if current.startswith("-"):
            flag, equals, value = current.partition("=")
            if equals and flag in self.current.flags:
                return self.values(self.current, self.current.flags[flag], value, f"{flag}=")
            return [flag for flag in self.flags() if flag.startswith("--")]
        if positional := self.current.next_positional():
            return self.values(self.current, positional, current, "")
        return command_names() if self.current is self.first else self.flags()

    def flags(self) -> list[str]:
        """The options that are still valid: those not given yet, and those that may be repeated."""
        owner = self.current
        return [flag for flag, field in owner.flags.items() if self.is_valid(field, owner.options[field])]

    def is_valid(self, field: str, option: Option) -> bool:
        is_given = field in self.current.values and not self.current.is_repeatable(field)
        return not (is_given or option.positional or option.refused)

    def values(self, owner: ParsedCommand, field: str, typed: str, head: str) -> Iterable[str]:
        option = owner.options[field]
        offered = registry.load(option.complete)(owner.values, typed) if option.complete else option.choices
        others = typed[: typed.rfind(",") + 1] if option.commas else ""
        return [f"{head}{others}{candidate}" for candidate in offered if candidate not in others.split(",")]


def labels(arguments: Given, _typed: str) -> Iterable[str]:
    from ci_tasks.run.checkout_source import outline

    source = _source(arguments)
    return [*outline(source), *([source.suite.changed.label] if source.suite.changed else [])]


def rows(arguments: Given, _typed: str) -> Iterable[str]:
    """Parts of the names of the label's rows that need no quotes: the file's name, and the mode without its
    brackets."""
    from ci_tasks.run.checkout_source import outline

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
