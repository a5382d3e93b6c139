"""The checkout's CI labels as nox sessions: `nox -l` lists them, `nox -s LABEL` runs one, `nox -s LABEL -- TEXT` the
rows whose names contain the text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import nox

from ci_tasks import registry
from ci_tasks.errors import counted
from ci_tasks.registry import Session

if TYPE_CHECKING:
    from ci_tasks.cli.commands.run import RunOptions

TAG = "ci"
_PROGRAM = "from ci_tasks.cli.program import main; main()"


def register() -> None:
    """Register a session for every label of the checkout's workflow. Exits nox with 2 if that cannot be read."""
    from ci_tasks.cli import exit_handler

    if code := exit_handler.run(_register):
        raise SystemExit(code)


def _register() -> int:
    from ci_tasks.run.checkout_source import open_source, outline

    source = open_source()
    rows_by_label, changed = outline(source), source.suite.changed
    for label, rows in rows_by_label.items():
        if changed is not None and label == changed.detect_label:
            continue
        _add_label(label, _description(len(rows), source.suite.is_changed(label)))
    for feature in registry.features():
        for session in feature.nox_sessions:
            _add_command(session, feature.name)
    return 0


def _add_command(declaration: Session, tag: str) -> None:
    """Register a session of a feature. It accepts the command's options after `--`."""

    def session(session: nox.Session) -> None:
        _end(session, subprocess.call([sys.executable, "-c", _PROGRAM, *declaration.command_line, *session.posargs]))

    session.__doc__ = declaration.summary
    nox.session(name=declaration.name, venv_backend="none", tags=[tag], default=False)(session)


def _description(rows: int, changed: bool) -> str:
    if changed:
        return "test files added or modified since the base branch, uncommitted ones too"
    return counted(rows, "row") if rows else "its rows depend on another job"


def _add_label(label: str, description: str) -> None:
    def session(session: nox.Session) -> None:
        from ci_tasks.cli import exit_handler

        _end(session, exit_handler.run(lambda: _run(session, label)))

    session.__doc__ = description
    nox.session(name=label, venv_backend="none", tags=[TAG], default=False)(session)


def _run(session: nox.Session, label: str) -> int:
    from ci_tasks.cli.commands.run import run_label

    options = parse_posargs(label, session.posargs)
    return 0 if options is None else run_label(options)


def parse_posargs(label: str, posargs: list[str]) -> RunOptions | None:
    """The options of a session from what follows nox's `--`: parts of row names, and the options of `remote` that are
    declared for nox. Prints --help and returns None for it. Raises UsageError."""
    from ci_tasks.cli import help, parser
    from ci_tasks.cli.commands.run import RemoteOptions
    from ci_tasks.cli.options import build, options_of, positional

    rows = positional("parts of row names; only rows whose names contain one of them", kind=tuple, required=False)
    accepted = {
        "rows": rows,
        **{name: declared for name, declared in options_of(RemoteOptions).items() if declared.nox},
    }
    name = f"nox -s {label} --"
    session = parser.ParsedCommand(name, {**accepted, "help": parser.PROGRAM_OPTIONS["help"]})
    values = parser.parse(posargs, session).program.values
    if "help" in values:
        print("\n".join(help.of_session(name, accepted)))
        return None
    only = ",".join(values["rows"]) if "rows" in values else None
    remote_options = {"host": "local", **values, "label": label, "only": only}
    return build(RemoteOptions, remote_options, name)


def _end(session: nox.Session, code: int) -> None:
    """Exit nox with the code of its only session, so that `git bisect run nox -s …` sees 125; else fail the session."""
    count: Callable[[], int] = session._runner.manifest.__len__
    if code and count() == 1:
        raise SystemExit(code)
    if code:
        session.error(f"exit code {code}")
