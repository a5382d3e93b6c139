"""The checkout's CI labels as nox sessions: `nox -l` lists them, `nox -s LABEL` runs one, `nox -s LABEL -- TEXT` the
rows whose names contain the text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import nox

from ci_tasks import registry
from ci_tasks.cli import exit_handler
from ci_tasks.errors import counted

if TYPE_CHECKING:
    from ci_tasks.cli.commands.labels import RunOptions

TAG = "ci"
_PROGRAM = "from ci_tasks.cli.program import main; main()"


def register() -> None:
    """Register a session for every label of the checkout's workflow, and the features' own. Exits nox with 2 if the
    workflow cannot be read."""
    if code := exit_handler.run(_register):
        raise SystemExit(code)


def _register() -> int:
    from ci_tasks.run.checkout_source import open_source, outline

    source = open_source()
    for label, rows in outline(source).items():
        if source.suite.is_changed(label):
            summary = "test files added or modified since the base branch, including uncommitted ones"
        else:
            summary = counted(len(rows), "row") if rows else "its rows depend on another job"
        if source.suite.changed is None or label != source.suite.changed.detect_label:
            _add(label, TAG, summary, partial(_run_label, label))
    for feature in registry.features():
        for declared in feature.nox_sessions:
            _add(declared.name, feature.name, declared.summary, partial(_run_command, declared.command_line))
    return 0


def _add(name: str, tag: str, summary: str, run: Callable[[nox.Session], int]) -> None:
    """Register a session. Its exit code is nox's if it is the only one, so that `git bisect run nox -s …` sees 125;
    else it fails the session."""

    def session(session: nox.Session) -> None:
        code = run(session)
        if code and len(session._runner.manifest) == 1:
            raise SystemExit(code)
        if code:
            session.error(f"exit code {code}")

    session.__doc__ = summary
    nox.session(name=name, venv_backend="none", tags=[tag], default=False)(session)


def _run_command(command_line: Sequence[str], session: nox.Session) -> int:
    """It accepts the command's options after `--`."""
    return subprocess.call([sys.executable, "-c", _PROGRAM, *command_line, *session.posargs])


def _run_label(label: str, session: nox.Session) -> int:
    from ci_tasks.cli.commands import labels

    def run() -> int:
        options = parse_posargs(label, session.posargs)
        return 0 if options is None else labels.run_label(options)

    return exit_handler.run(run)


def parse_posargs(label: str, posargs: list[str]) -> RunOptions | None:
    """The options of a session from what follows nox's `--`: parts of row names, and the options of `remote` that are
    declared for nox. Prints --help and returns None for it. Raises UsageError."""
    from ci_tasks.cli import program
    from ci_tasks.cli.commands.labels import RemoteOptions
    from ci_tasks.cli.options import build, options_of, positional

    rows = positional("parts of row names; only rows whose names contain one of them", kind=tuple, required=False)
    accepted = {"rows": rows, **{name: option for name, option in options_of(RemoteOptions).items() if option.nox}}
    name = f"nox -s {label} --"
    session = program.ParsedCommand(name, {**accepted, "help": program.PROGRAM_OPTIONS["help"]})
    values = program.parse(posargs, session).program.values
    if "help" in values:
        print("\n".join(program.help_of_session(name, accepted)))
        return None
    only = ",".join(values["rows"]) if "rows" in values else None
    return build(RemoteOptions, {"host": "local", **values, "label": label, "only": only}, name)
