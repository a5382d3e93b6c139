"""`report`: runs that exist, told again: in the terminal, as one HTML page, as markdown, as JUnit."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci_tasks import __version__
from ci_tasks.errors import UsageError
from ci_tasks.flows.running import conclude
from ci_tasks.judge.curves import read_series
from ci_tasks.model import PASSED
from ci_tasks.report.html.curves import CI, Curve
from ci_tasks.report.html.page import Ci, Log, Run, page
from ci_tasks.report.html.timeline import Bar, phases
from ci_tasks.runner.layout import RunDir, read_json
from ci_tasks.runs import store
from ci_tasks.runs.record import load

_PIECE = 1 << 18
_MOST_EVENTS = 1 << 20  # bytes of events.jsonl: a gate that waits for days says so again and again


@dataclass(frozen=True)
class Ask:
    """Where the report goes: files, or markdown on standard output; none of them means the terminal. `ci_log` is CI's
    own log of the row, `job` which of the jobs in it."""

    html: Path | None = None
    junit: Path | None = None
    markdown: bool = False
    ci_log: str | None = None
    job: str | None = None


Found = tuple[str, RunDir, dict[str, Any]]  # id, directory, record


def report(names: Sequence[str], ask: Ask) -> int:
    """Tell what the runs that `names` mean did. Returns 0, whatever they did. Raises UnknownName, UsageError."""
    found = _find(names)
    title = _title([id for id, _, _ in found])
    records, logs = [record for _, _, record in found], [run.log for _, run, _ in found]
    if ask.ci_log is not None and ask.html is None:
        raise UsageError("--ci-log draws CI's metrics beside the run's", hint="add --html FILE")
    if ask.html is not None:
        with _ci(ask, found) as ci:
            _write(ask.html, page(title, _runs(found), ci, _made()))
    if ask.junit is not None:
        from ci_tasks.report import junit

        _write(ask.junit, [junit.render(title, records, logs)])
    if ask.markdown:
        from ci_tasks.report import markdown

        print(markdown.render(title, records), end="")
    for path in (ask.html, ask.junit):
        if path is not None:  # standard output may be the markdown
            print(f"{path}: {_size(path)}", file=sys.stderr if ask.markdown else sys.stdout)
    if not (ask.html or ask.junit or ask.markdown):
        conclude(records, logs, title)
    return 0


def _find(names: Sequence[str]) -> list[Found]:
    """Every run once, in the order in which they were named."""
    found = {id: run for name in names for id, run in store.find(name)}
    return [(id, run, load(run)) for id, run in found.items()]


def _title(ids: Sequence[str]) -> str:
    batches = list(dict.fromkeys(map(store.batch_of, ids)))
    return (
        ids[0] if len(ids) == 1 else ", ".join(batches[:3]) + (f" and {len(batches) - 3} more" if batches[3:] else "")
    )


def _made() -> str:
    return f"Made by ci-tasks {__version__}, {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}."


# -- runs as the page wants them ---------------------------------------------------------------------------------------


def _runs(found: Sequence[Found]) -> list[Run]:
    rows = [record["row"] for _, _, record in found]
    return [
        Run(record, _bar(id, run, record), _curves(id, run, rows.count(record["row"])), _log(id, run, record))
        for id, run, record in found
    ]


def _bar(id: str, run: RunDir, record: dict[str, Any]) -> Bar | None:
    """When the run began, had its GPUs and ended, by its own clock; None for one that did not begin."""
    events, status = _events(run), read_json(run.status)
    times = [float(event["t"]) for event in events if isinstance(event.get("t"), (int, float))]
    began = status.get("started_at") or min(times, default=None)
    if began is None:
        return None
    ended = status.get("ended_at") or max([*times, float(status.get("heartbeat_at") or began)])
    held = next((event["t"] for event in reversed(events) if event.get("event") == "gpus"), None)
    gpus = tuple(int(number) for number in record.get("gpu_ids") or ())
    return Bar(
        row=str(record["row"]),
        status=str(record["status"]),
        batch=store.batch_of(id),
        host=str(record["host"]),
        began=float(began),
        ended=max(float(began), float(ended)),
        held=float(held) if held is not None else None,
        gpus=gpus,
        phases=phases(events),
    )


def _events(run: RunDir) -> list[dict[str, Any]]:
    """The lines of events.jsonl; one that is half written is none."""
    found = []
    try:
        with open(run.events, encoding="utf-8", errors="replace") as source:
            for line in source.read(_MOST_EVENTS).splitlines():
                with contextlib.suppress(ValueError):
                    value = json.loads(line)
                    found += [value] if isinstance(value, dict) else []
    except OSError:
        pass
    return found


def _curves(id: str, run: RunDir, alike: int) -> list[Curve]:
    source = "here" if alike == 1 else id
    size = _log_size(run)
    return _drawn(source, _pieces(run.log, size)) if size else []


def _drawn(source: str, pieces: Iterable[bytes]) -> list[Curve]:
    return [Curve(one.family, one.name, source, one.parts) for one in read_series(pieces)]


def _log(id: str, run: RunDir, record: dict[str, Any]) -> Log | None:
    size = _log_size(run)
    if not size:
        return None
    blamed = (record.get("triage") or {}).get("line_no") if record["status"] != PASSED else None
    return Log(f"{record['row']}: {record['status']} ({id})", size, _pieces(run.log, size), blamed)


def _log_size(run: RunDir) -> int:
    """Bytes of the log as it is now; 0 for one that is a device, which may have no end."""
    try:
        found = os.stat(run.log)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _pieces(path: str, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file that may be growing."""
    with open(path, "rb") as source:
        while size > 0 and (piece := source.read(min(_PIECE, size))):
            size -= len(piece)
            yield piece


# -- CI's own log ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _ci(ask: Ask, found: Sequence[Found]) -> Iterator[Ci | None]:
    """CI's log, for as long as the page is written. Raises UsageError where it is not clear whose it is."""
    if ask.ci_log is None:
        yield None
        return
    from ci_tasks.flows.ci_log import from_file
    from ci_tasks.forge.logsource import STANDARD_INPUT, open_log

    rows = list(dict.fromkeys(str(record["row"]) for _, _, record in found))
    if len(rows) > 1:
        raise UsageError(
            f"--ci-log is one row's log, and these runs are of {len(rows)} rows", hint="name one of the runs"
        )
    if ask.ci_log == STANDARD_INPUT:
        raise UsageError("--ci-log reads a file, more than once", hint="save what is piped in, and name the file")
    blamed = from_file(ask.ci_log, ask.job).triage.line_no
    with open_log(ask.ci_log) as source:
        text = _Job(source.job(ask.job) if ask.job and len(source.jobs) > 1 else source.jobs[0], ask.job)
        size = sum(len(piece) for piece in text)
        yield Ci(rows[0], _drawn(CI, iter(text)), Log(f"CI: {source.name}", size, iter(text), blamed))


class _Job:
    """One job's lines of CI's log, without CI's prefixes; lines of other jobs are empty, so that numbers stay. Can be
    read again and again."""

    def __init__(self, lines: Iterable[bytes], job: str | None) -> None:
        from ci_tasks.workflow.cilog import lines as cilog

        self._lines, self._read = lines, cilog.read
        jobs = cilog.jobs_in(cilog.read(lines))
        failed = [one.name for one in jobs if one.failed] or [one.name for one in jobs]
        self._inside = "" if len(jobs) < 2 else job if job in {one.name for one in jobs} else failed[0]

    def __iter__(self) -> Iterator[bytes]:
        for line in self._read(self._lines):
            yield line.text + b"\n" if not self._inside or line.job == self._inside else b"\n"


# -- files -------------------------------------------------------------------------------------------------------------


def _write(path: Path, text: Iterable[str]) -> None:
    """Write a file whole or not at all. Raises UsageError where it cannot be there."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="name a file in it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no directory {path.absolute().parent}", hint="make it, or name another file")
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        # A path that is no UTF-8 may stand in a record as a lone surrogate.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
            out.writelines(text)
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _size(path: Path) -> str:
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
