"""The checkout's jobs as nox sessions: `nox -l` lists what CI runs, `nox -s LABEL` runs it.

A label whose rows are one test file with different arguments also gets a session for each row, `ckpt(async-save)`: like
a parametrized session, but `nox -s ckpt` runs all of them at once and ends with one table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import nox

if TYPE_CHECKING:
    from ci_tasks.flows.source import Source

TAG = "ci"
_LEVELS = 6  # of ci_tasks.suites.verl, which is not loaded for a list of names


def register() -> None:
    """Make a session of every label of the checkout's workflow. Leaves nox with exit code 2 where it cannot be read."""
    from ci_tasks import door

    code = door.run(_register)
    if code:
        raise SystemExit(code)


def _register() -> int:
    from ci_tasks.flows.outline import outline
    from ci_tasks.flows.source import open_source
    from ci_tasks.suites.slime import CHANGED

    source = open_source()
    found = outline(source)
    for label, rows in found.items():
        if label == f"{CHANGED}-detect":
            continue
        _session(source, label, label, None, _description(len(rows), label == CHANGED))
        for name, row in _modes(label, rows).items():
            _session(source, name, label, row, f"row {row} alone")
    if CHANGED not in found:
        _session(source, CHANGED, CHANGED, None, _description(0, True))
    for level in range(_LEVELS):
        _level(level)
    return 0


def _level(level: int) -> None:
    """A level of verl's, with the command's flags after `--`."""

    def session(session: nox.Session) -> None:
        words = [sys.executable, "-c", "from ci_tasks.cli import main; main()", "verl", "--level", str(level)]
        code = subprocess.call([*words, *session.posargs])
        if code:
            _leave(session, code)

    session.__doc__ = f"verl end-to-end of a Megatron-Bridge change, level {level}"
    nox.session(name=f"verl(level={level})", venv_backend="none", tags=["verl"], default=False)(session)


def _description(rows: int, changed: bool) -> str:
    if changed:
        return "test files added or modified since the base branch, uncommitted ones too"
    return f"{rows} row{'' if rows == 1 else 's'}" if rows else "rows decided by another job"


def _modes(label: str, rows: list[str]) -> dict[str, str]:
    """`label(mode)` → row, for a label of one test file in several modes."""
    stems = {row.partition("[")[0] for row in rows}
    if len(rows) < 2 or len(stems) != 1 or not all(row.endswith("]") for row in rows):
        return {}
    return {f"{label}({row.partition('[')[2][:-1]})": row for row in rows}


def _session(source: Source, name: str, label: str, row: str | None, description: str) -> None:
    def session(session: nox.Session) -> None:
        _run(session, source, label, row)

    session.__doc__ = description
    nox.session(name=name, venv_backend="none", tags=[TAG], default=False)(session)


def _run(session: nox.Session, source: Source, label: str, row: str | None) -> None:
    from ci_tasks import door
    from ci_tasks.flows.prepare import Request
    from ci_tasks.flows.running import How, run
    from ci_tasks.flows.source import open_config

    words = _words(label, session.posargs)
    only = ",".join(words.parts) or row
    request = Request(label, only, words.host, words.base)
    how = How(jobs=words.jobs, reuse=_reuses(session))
    code = door.run(lambda: run(source, open_config(), request, how))
    if code:
        _leave(session, code)


def _words(label: str, posargs: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"nox -s {label} --", description="Words are parts of row names.")
    parser.add_argument("parts", nargs="*", metavar="ROW", help="only rows whose name contains one of these")
    parser.add_argument("--host", default="local", help="a host of hosts.yaml (default: local)")
    parser.add_argument("--jobs", type=_positive, help="rows at once (default: one a core, or as GPUs allow)")
    parser.add_argument("--base", help="what changed tests are compared with (default: origin/main)")
    return parser.parse_intermixed_args(posargs)


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows")
    return int(text)


def _reuses(session: nox.Session) -> bool:
    """Whether nox was called with -r or -R. It has no public way to ask; a test notices when this one goes."""
    config: Any = session._runner.global_config
    return config.reuse_venv in ("yes", "always")


def _leave(session: nox.Session, code: int) -> NoReturn:
    """The exit code of a single session is nox's, so that `git bisect run nox -s …` sees 125. Of several, nox tells."""
    queue: Callable[[], int] = session._runner.manifest.__len__
    if queue() == 1:
        raise SystemExit(code)
    session.error(f"exit code {code}")
