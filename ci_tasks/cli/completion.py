"""Shell completion: the candidates at the cursor, and the scripts for bash and zsh.

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
from ci_tasks.cli.parser import CommandLine, ParsedCommand

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
    if current.startswith("-"):
        flag, equals, value = current.partition("=")
        if equals and flag in command.flags:
            return _values(command, command.flags[flag], value, f"{flag}=")
        return [flag for flag in _flags(command) if flag.startswith("--")]
    if positional := command.next_positional():
        return _values(command, positional, current, "")
    return command_names() if command is line.program else _flags(command)


def _flags(command: ParsedCommand) -> list[str]:
    """The options that are still valid: those not given yet, and those that may be repeated."""
    return [
        flag
        for flag, field in command.flags.items()
        if not command.options[field].refused and (field not in command.values or command.is_repeatable(field))
    ]


def _values(owner: ParsedCommand, field: str, typed: str, head: str) -> Iterable[str]:
    option = owner.options[field]
    offered = registry.load(option.complete)(owner.values, typed) if option.complete else option.choices
    others = typed[: typed.rfind(",") + 1] if option.commas else ""
    return [f"{head}{others}{candidate}" for candidate in offered if candidate not in others.split(",")]


def labels(arguments: Given, _typed: str) -> Iterable[str]:
    from ci_tasks.run.checkout_source import outline

    return outline(_source(arguments))


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
