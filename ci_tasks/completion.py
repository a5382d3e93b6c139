"""Shell completion: which words may stand where the cursor is, and the scripts that make bash, zsh and fish ask.

Commands and flags are the parser's own. Values come from where the command will look for them: labels and rows from
the checkout's workflow, hosts and pools from hosts.yaml, runs from the directory where they are kept. Nobody wants an
error in the middle of a line, so what cannot be read completes nothing, and the shell then offers files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from invoke import program
from invoke.exceptions import Exit

from ci_tasks.errors import EXIT_USAGE

if TYPE_CHECKING:
    from invoke.parser.argument import Argument
    from invoke.parser.context import ParserContext

    from ci_tasks.flows.source import Source

Given = Mapping[str, str]
"""The flags and positionals that stand before the cursor: name → value."""

_NEWEST = 20  # batches; who wants an older run knows how its name begins, or asks `runs`
_BATCHES_FROM = re.compile(r"\d{4}")  # a year: an older run is meant
_SEVERAL = ("host", "only", "status", "variant")  # flags whose value may have commas


def install() -> None:
    """Make invoke's `--complete` and `--print-completion-script` ours, for the commands of this process."""
    program.complete = _complete  # type: ignore[attr-defined]
    program.print_completion_script = _print_script  # type: ignore[attr-defined]


def candidates(
    before: Sequence[str], current: str, contexts: Mapping[str, ParserContext], core: ParserContext
) -> list[str]:
    """The words that may stand for `current`, the beginning of one, after the words `before` it; sorted, each once."""
    try:
        cursor = _Cursor(contexts, core)
        for word in before:
            cursor.pass_over(word)
        found = cursor.options(current)
    except Exception:  # a broken workflow, a hosts.yaml with an unknown key, no git: nothing is said about it here
        return []
    return sorted({one for one in found if one.startswith(current)})


class _Cursor:
    """What the words so far mean: the command, what it was given, and the flag whose value comes next."""

    def __init__(self, contexts: Mapping[str, ParserContext], core: ParserContext) -> None:
        self.contexts, self.core = contexts, core
        self.context = core
        self.given: dict[str, str] = {}
        self.flag: Argument | None = None

    def pass_over(self, word: str) -> None:
        if word == "=" and self.flag is not None:  # bash takes --host=a for three words
            return
        if self.flag is not None and not (self.flag.optional and word.startswith("-")):
            self.given[_name(self.flag)] = word
            self.flag = None
        elif word.startswith("-") and word != "-":
            self._see_flag(word)
        elif missing := self._missing():
            self.given[_name(missing)] = word
        else:
            self.context = self.contexts[word]
            self.given = {}

    def options(self, current: str) -> Iterable[str]:
        if self.flag is not None:
            return self._values(self.flag, current.removeprefix("="), current[: current.startswith("=")])
        if current.startswith("-"):
            name, equals, value = current.partition("=")
            flag = self.context.flags.get(name)
            if equals and flag is not None:
                return self._values(flag, value, f"{name}=")
            return [one for one in self._flags() if one.startswith("--")]
        if missing := self._missing():
            return self._values(missing, current, "")
        return self.contexts if self.context is self.core else self._flags()

    def _see_flag(self, word: str) -> None:
        name, equals, value = word.partition("=")
        flag = self.context.flags.get(name) or self.core.flags[name]
        self.given[_name(flag)] = value
        self.flag = flag if flag.takes_value and not equals else None

    def _missing(self) -> Argument | None:
        return next((one for one in self.context.positional_args if _name(one) not in self.given), None)

    def _flags(self) -> list[str]:
        """The flags that may come yet: each once, and those that may be repeated."""
        flags = self.context.flags
        return [name for name, flag in flags.items() if _name(flag) not in self.given or flag.kind is list]

    def _values(self, flag: Argument, typed: str, head: str) -> Iterable[str]:
        name, command = _name(flag), self.context.name or ""
        offer = _VALUES.get((command, name)) or _VALUES.get(("", name))
        if offer is None:
            return []
        others = ""
        if name in _SEVERAL or (command, name) == ("report", "run"):
            others = typed[: typed.rfind(",") + 1]
        return [f"{head}{others}{one}" for one in offer(self.given, typed) if one not in others.split(",")]


def _name(argument: Argument) -> str:
    return str(argument.name)


def _labels(given: Given, _typed: str) -> Iterable[str]:
    from ci_tasks.flows.outline import outline
    from ci_tasks.suites.slime import CHANGED

    return [*outline(_source(given)), CHANGED]


def _rows(given: Given, _typed: str) -> Iterable[str]:
    """The parts that tell the rows of the label apart: the file's name, and the mode without its brackets, which a
    shell would take for a pattern."""
    from ci_tasks.flows.outline import outline

    return [part for row in outline(_source(given))[given["label"]] for part in re.split(r"[\[\],]", row) if part]


def _source(given: Given) -> Source:
    from ci_tasks.flows.source import open_source

    return open_source(given.get("repo"), given.get("rev"), given.get("workflow"))


def _hosts(_given: Given, _typed: str) -> Iterable[str]:
    from ci_tasks.flows.source import open_config

    config = open_config()
    return [*config.hosts, *config.pools]


def _runs(_given: Given, typed: str) -> Iterable[str]:
    """Batches; the rows of one whose name and dot are typed."""
    from ci_tasks.runs import store

    batch, dot, _ = typed.rpartition(",")[2].rpartition(".")
    if dot and (rows := store.directories(store.home() / "runs" / batch)):
        return [f"{batch}.{row}" for row in rows if row.isdecimal()]
    newest = sorted(store.batches(), reverse=True)
    return ["last", *(newest if _BATCHES_FROM.match(typed) else newest[:_NEWEST])]


def _statuses(_given: Given, _typed: str) -> Iterable[str]:
    from ci_tasks.runs.history import STATUSES

    return STATUSES


def _one_of(*words: str) -> Callable[[Given, str], Iterable[str]]:
    return lambda _given, _typed: words


# (command, argument) → its values; "" is any command
_VALUES: dict[tuple[str, str], Callable[[Given, str], Iterable[str]]] = {
    ("", "label"): _labels,
    ("", "only"): _rows,
    ("", "host"): _hosts,
    ("", "run"): _runs,
    ("runs", "status"): _statuses,
    ("lint", "format"): _one_of("text", "json", "sarif", "github"),
    ("coverage", "format"): _one_of("md", "json", "html"),
    ("verl", "level"): _one_of(*"012345"),
    ("verl", "variant"): _one_of("dense", "expert"),
    ("", "help"): lambda _given, _typed: (),
    ("", "print-completion-script"): _one_of("bash", "zsh", "fish"),
}


def _complete(
    names: Sequence[str], core: Any, initial_context: ParserContext, collection: Any, parser: Any
) -> NoReturn:
    """Invoke's `--complete -- WORDS`. Our scripts leave the program's name out, and their last word is the one that is
    being typed. Bare invoke's script passes the whole line without telling where the cursor is: a last word that is
    complete is taken for one that is over; the script itself leaves out what does not begin as the word does."""
    words = sys.argv[sys.argv.index("--") + 1 :]
    contexts = parser.contexts
    if "invoke" not in names:
        found = candidates(words[:-1], words[-1] if words else "", contexts, initial_context)
    else:
        before, last = words[1:-1], words[-1] if len(words) > 1 else ""
        found = candidates(before, last, contexts, initial_context)
        if last in found or not found:
            found = candidates([*before, last], "", contexts, initial_context)
    print("\n".join(found))
    raise Exit


def _print_script(shell: str, names: Sequence[str]) -> None:
    if shell not in SCRIPTS:
        raise Exit(f"ci-tasks: no completion for {shell!r}\nvalid: {', '.join(SCRIPTS)}", code=EXIT_USAGE)
    print(SCRIPTS[shell], end="")


# What follows the cursor in the line is never asked for. An empty answer leaves the word to the shell's own file names.
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
