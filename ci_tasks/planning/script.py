"""run.sh as text. It is bash that a person can read and run by hand, and the only thing that the runner executes.

What GitHub's runner does around a step is done here in plain bash: the script file and its interpreter, GITHUB_ENV,
GITHUB_PATH and GITHUB_OUTPUT, `if:` by the job's state, the `##[group]` and `##[error]` lines of CI's log. Bash that is
the same in every script is in `run_parts.sh`, in parts with names.

Outputs and outcomes of earlier steps, and variables that they write to GITHUB_ENV, are known only while the job runs:
run.sh keeps what steps leave in its array `_steps`, under `ID.outputs.NAME` in lower case, `ID.outcome` and
`ID.conclusion`. They are texts, so the rules of GitHub's documentation page "Evaluate expressions in workflows and
actions" for texts are all that is needed: no value is '', a text is true unless it is empty, and == minds no case. What
needs more, such as fromJSON of an output, has no form here.

In a planned text a mark stands for such a value; like a secret's it uses characters that YAML forbids.
"""

from __future__ import annotations

import json
import pkgutil
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any, NamedTuple

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.workflow import secrets
from ci_tasks.workflow.expressions import HASH_FILES, Evaluation, Node, condition_tree, parse, split
from ci_tasks.workflow.values import Unknown, Value, is_primitive, to_string, truth

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names that bash keeps for itself, or that would change how this script is read: they reach the steps through `env`.
_RESERVED = (
    "BASHOPTS BASHPID BASH_ARGC BASH_ARGV BASH_COMMAND BASH_LINENO BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO DIRSTACK "
    "EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GLOBIGNORE GROUPS HISTCMD IFS LINENO OPTARG OPTIND PIPESTATUS "
    "POSIXLY_CORRECT PPID RANDOM SECONDS SHELLOPTS SRANDOM UID _"
)
RESERVED = frozenset(_RESERVED.split())


@dataclass(frozen=True)
class PlannedStep:
    """A step as bash will run it. `words` start the interpreter; `{0}` among them is the script's file. Whether it runs
    after a success or a failure may be a bash command; `late` are the bash words of the marks in `text` and `env`, see
    `late_text`."""

    name: str
    text: str
    words: tuple[str, ...]
    directory: str
    env: Mapping[str, str] = field(default_factory=dict)
    id: str | None = None
    on_success: bool | str = True
    on_failure: bool | str = False
    continue_on_error: bool = False
    timeout_minutes: float | None = None
    late: Mapping[str, str] = field(default_factory=dict)
    own: bool = False  # belongs to this row alone, because it depends on the matrix
    is_script: bool = True  # the workflow's own, not one that stands for an action


@dataclass(frozen=True)
class Venv:
    """A venv for the steps. `layered` puts it over `python`'s own packages and in the run's scratch directory; without
    a `python` that is the one on PATH, which may be of a venv itself. What its first `installing` steps get from an
    index is shared with other runs."""

    python: str = ""
    path: str = ""
    layered: bool = False
    installing: int = 0


@dataclass(frozen=True)
class Script:
    """What run.sh is made of.

    `container` are the words of a job-level container: options for `docker run`, and the image last. `setup` is the
    directory of the shared install steps that the script waits for; `is_setup` says that it is these steps itself.
    `probe`: PYTHONPATH and the venv get the probe. `artifacts` are what other jobs uploaded, by name: tar.gz in base64.
    """

    title: str
    commit: str
    workspace: str
    env: Mapping[str, str]
    steps: Sequence[PlannedStep]
    secrets: Sequence[str] = ()
    venv: Venv | None = None
    setup: str | None = None
    is_setup: bool = False
    container: Sequence[str] = ()
    github: Mapping[str, str] = field(default_factory=dict)
    probe: bool = False
    artifacts: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_venv(self) -> bool:
        """Whether the steps have a venv that is the row's own."""
        return not self.is_setup and (self.venv is not None or self.setup is not None)


def render(script: Script) -> str:
    """The text of run.sh, or of a setup's."""
    parts = [
        _head(script),
        part("ADAPTER_CHECK"),
        part("FUNCTIONS"),
        _exports("What GitHub sets for every job.", script.github),
        part("OF_THE_CHECKOUT") if script.is_setup else "",
        part("PYTEST"),
        _exports("The workflow's and the job's env.", script.env),
        "_path=$PATH\n",
        part("ADAPTER") if script.container else "",
        _container(script) if script.container else "",
        part("SETUP", directory=shlex.quote(script.setup)) if script.setup else "",
        _venv(script.venv) if script.venv else "",
        part("PROBE") if script.probe else "",
        part("ADAPTER") if not script.container else "",
        *(part("ARTIFACT", artifact=shlex.quote(name), text=packed) for name, packed in script.artifacts.items()),
        *_steps(script),
        part("SETUP_TAIL") if script.is_setup else part("TAIL"),
    ]
    return "\n".join(part for part in parts if part)


@cache
def _parts() -> dict[str, str]:
    text = (pkgutil.get_data(__name__, "run_parts.sh") or b"").decode()
    sections = (section.partition("]\n") for section in text.split("\n#: [")[1:])
    return {name: re.sub(r"(?m)^#:.*\n", "", body) for name, _, body in sections}


def part(name: str, **values: str) -> str:
    """The bash of this name in run_parts.sh, with the values in the place of `@name@`."""
    return re.sub(r"@([a-z]+)@", lambda found: values[found[1]], _parts()[name])


def _steps(script: Script) -> list[str]:
    texts = [_step(number, step, script.workspace) for number, step in enumerate(script.steps, 1)]
    if script.venv and script.venv.installing:
        texts.insert(script.venv.installing, part("STORE_PACKAGES"))
    return texts


def _head(script: Script) -> str:
    names = " ".join(script.secrets)
    return part(
        "HEAD",
        title="".join(char if char.isprintable() else "?" for char in script.title),
        commit="" if script.is_setup else f" of {script.commit}",
        note=f"# Secrets come from your environment: {names}\n" if names else "",
        workspace=shlex.quote(script.workspace),
        secrets=" ".join(name for name in script.secrets if _NAME.fullmatch(name)),
        reserved=" ".join(sorted(RESERVED)),
    )


def _exports(why: str, env: Mapping[str, str]) -> str:
    lines = [_assignment(name, quote(value)) for name, value in env.items()]
    return "\n".join([f"# {why}", *lines, ""]) if lines else ""


def retried(text: str, step: int, commits: tuple[str, str], directories: Sequence[str]) -> str:
    """run.sh of a run, as a retry runs it: from step number `step` on, counted from 1, in the workspace and venv of the
    first of `directories`, with what the steps of the last one left. `commits`: what ran there, and what runs now."""
    kept = f"_first={step} _kept={shlex.quote(directories[0])} _before={shlex.quote(directories[-1])}\n"
    head, options, rest = text.replace(*commits).partition("set -uo pipefail\n")
    return head + options + kept + re.sub(r"\A_first=.*\n", "", rest)


def _assignment(name: str, word: str) -> str:
    """A variable for the steps: exported, or kept for `env` if its name is none for bash."""
    if name == "PYTEST_ADDOPTS":
        word += '" $_junit"'
    if not _NAME.fullmatch(name) or name in RESERVED:
        return f"_odd+=({shlex.quote(name + '=')}{word})"
    return f"export {name}={word}"


def _venv(venv: Venv) -> str:
    python = shlex.quote(venv.python) if venv.python else "$(command -v python3)"
    if venv.layered:
        # A simulated host's rows may need packages of the person's home; those for an image must not see them.
        alone = "" if venv.python else " PYTHONNOUSERSITE=1"
        return part("LAYERED_VENV", python=python, outer="" if venv.python else part("OUTER"), alone=alone)
    make = '-I "$CI_TASKS_RUN_DIR/bin/agent.pyz" venv "$CI_TASKS_RUN_DIR"' if venv.installing else "-m venv"
    note = part("NOTE_PACKAGES") if venv.installing else ""
    return part("VENV", path=shlex.quote(venv.path), python=python, make=make, note=note)


def _container(script: Script) -> str:
    """The job-level `container:`: this very script again, inside. As on GitHub, the image's entrypoint has no say."""
    names = [name for name in dict.fromkeys((*script.secrets, "PYTEST_ADDOPTS")) if _NAME.fullmatch(name)]
    *words, image = (quote(word) for word in script.container)
    return part("CONTAINER", arguments=" ".join(words), passed=" ".join(f"-e {name}" for name in names), image=image)


def _step(number: int, step: PlannedStep, workspace: str) -> str:
    mark = f"END_OF_STEP_{number}"
    while mark in step.text:
        mark += "_"
    whole = step.text.endswith("\n")
    minutes = f"{step.timeout_minutes:g}" if step.timeout_minutes else ""
    limit = ["timeout", "-k", "10", f"{minutes}m"] if minutes else []
    shown = " ".join(secrets.shown(step.name).split())
    event = shlex.quote(f'"event": "step", "name": {json.dumps(shown)}')
    of_step = f"finish $? {int(step.continue_on_error)} {shlex.quote(step.id or '')} {minutes or repr('')}"
    on_success, decides = _decision("_on_success", step.on_success)
    on_failure, decides_too = _decision("_on_failure", step.on_failure)
    return part(
        "STEP", decide=decides + decides_too, begin=f"{shlex.quote(shown)} {on_success} {on_failure} {event}",
        directory=_directory(step.directory, workspace),
        exports="".join(f"    {_of_step(key, value, step.late)}\n" for key, value in step.env.items()),
        late=_late(step),
        words=("" if whole else "-n ") + " ".join([*limit, *(shlex.quote(word) for word in step.words)]), mark=mark,
        text=step.text if whole else step.text + "\n", end=of_step,
    )  # fmt: skip


def _decision(variable: str, holds: bool | str) -> tuple[str, str]:
    """The word that says whether an `if:` holds, and the line that decides one which needs what earlier steps left."""
    if isinstance(holds, str):
        return f'"${variable}"', f"if {holds}; then {variable}=1; else {variable}=0; fi\n"
    return str(int(holds)), ""


def _late(step: PlannedStep) -> str:
    """What stands for the marks in the step's text."""
    used = {source: word for source, word in step.late.items() if f"\x02{source}\x03" in step.text}
    return f"    _late=({' '.join(f'{shlex.quote(source)} {word}' for source, word in used.items())})\n" if used else ""


def _of_step(name: str, value: str, words: Mapping[str, str]) -> str:
    """A variable of one step. Its PATH comes behind the venv and what earlier steps put in front, as on GitHub."""
    word = quote(value, words)
    return f'export PATH="${{PATH%"$_path"}}"{word}' if name == "PATH" else _assignment(name, word)


def _directory(directory: str, workspace: str) -> str:
    """Below the workspace wherever that is, so that the script also runs with another one."""
    if directory in (workspace, "", "."):
        return '"$GITHUB_WORKSPACE"'
    below = directory.removeprefix(workspace + "/")
    return quote(directory) if below.startswith("/") else '"$GITHUB_WORKSPACE"/' + quote(below)


# -- values that are known only while a job runs -----------------------------------------------------------------------

_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_MARK = re.compile("\x02(\\$\\{\\{.*?\\}\\})\x03", re.DOTALL)
_TESTS = {"contains": "contains", "startsWith": "starts_with", "endsWith": "ends_with"}  # functions of run_parts.sh


class NotLateError(Exception):
    """The value cannot be had from what bash knows when the step starts."""


class Late(NamedTuple):
    """A value as bash: a command that succeeds if it is true, and the word that is its text."""

    test: str
    word: str


def late_text(template: str, contexts: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The template with marks for what is known later, and the bash word of each mark. Raises NotLateError,
    ExpressionError."""
    pieces, words = list[str](), dict[str, str]()
    for part in split(template):
        if not part.is_expression:
            pieces.append(part.text)
            continue
        node, evaluation = parse(part.text), Evaluation(part.text, contexts)
        value = evaluation.value(node)
        if isinstance(value, Unknown):
            source = f"${{{{ {part.text} }}}}"
            words[source] = _compiled(node, evaluation).word
            pieces.append(f"\x02{source}\x03")
        else:
            pieces.append(to_string(value))
    return "".join(pieces), words


def late_test(condition: str, contexts: Mapping[str, Any], status: str) -> str:
    """The command that succeeds if an `if:` is true. Raises NotLateError, ExpressionError."""
    tree = condition_tree(condition)
    assert tree is not None, "no text is no question"
    return _compiled(tree, Evaluation(condition, contexts, status)).test


def quote(text: str, words: Mapping[str, str] = {}) -> str:
    """A bash word for `text`, with each secret taken from the environment when bash comes to it, and `words` for the
    marks of what is known late."""
    parts = _MARK.split(text)
    quoted = [_with_secrets(part) if at % 2 == 0 else words[part] for at, part in enumerate(parts) if part]
    return "".join(quoted) or "''"


def _with_secrets(text: str) -> str:
    words: list[str] = []
    for literal, name in secrets.split(text):
        words += [shlex.quote(literal)] if literal else []
        words += [f'"${{{name}:-}}"'] if name else []
    return "".join(words)


def _compiled(node: Node, evaluation: Evaluation) -> Late:
    value = evaluation.value(node)
    if not isinstance(value, Unknown):
        return _literal(value)
    if not all(name.startswith(("steps.", "env.", HASH_FILES)) for name in value.names):
        raise NotLateError
    if node.kind == "call" and node.value == HASH_FILES:
        return _text(f'"$({_call("hash_files", node.parts, evaluation)})"')
    if value.named:
        return _named(value.names[0])
    if node.kind in ("&&", "||"):
        left, right = (_compiled(part, evaluation) for part in node.parts)
        first, second = (left, right) if node.kind == "||" else (right, left)
        word = f'"$(if {left.test}; then printf %s {first.word}; else printf %s {second.word}; fi)"'
        return Late(f"{{ {left.test} {node.kind} {right.test}; }}", word)
    if node.kind == "!":
        return _boolean(f"! {_compiled(node.parts[0], evaluation).test}")
    if node.kind in ("==", "!="):
        return _boolean(("! " if node.kind == "!=" else "") + _call("same", node.parts, evaluation))
    if node.kind == "call" and node.value in _TESTS:
        return _boolean(_call(_TESTS[str(node.value)], node.parts, evaluation))
    raise NotLateError


def _call(function: str, parts: tuple[Node, ...], evaluation: Evaluation) -> str:
    """A comparison of texts. One with a number, a boolean or null goes by other rules."""
    for part in parts:
        value = evaluation.value(part)
        is_boolean = isinstance(value, Unknown) and (part.kind in ("!", "==", "!=") or part.value in _TESTS)
        if (is_boolean and function == "same") or not isinstance(value, (str, Unknown)):
            raise NotLateError
    return f"{function} {' '.join(_compiled(part, evaluation).word for part in parts)}"


def _literal(value: Value) -> Late:
    if not is_primitive(value):
        raise NotLateError
    return Late("true" if truth(value) else "false", quote(to_string(value)))


def _boolean(command: str) -> Late:
    return Late(command, f'"$(if {command}; then echo true; else echo false; fi)"')


def _named(name: str) -> Late:
    """`steps.ID.…` and `env.NAME`."""
    context, _, key = name.partition(".")
    if context == "env" and _NAME.fullmatch(key):
        word = f'"${{{key}-}}"'
    elif context == "steps" and _KEY.fullmatch(key):
        of_step = key.rpartition(".")[2] in ("outcome", "conclusion") and key.count(".outputs.") == 0
        word = f'"${{_steps[{key.lower()}]-{"skipped" if of_step else ""}}}"'
    else:
        raise NotLateError
    return _text(word)


def _text(word: str) -> Late:
    return Late(f"[ -n {word} ]", word)
