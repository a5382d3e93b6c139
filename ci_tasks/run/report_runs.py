"""`report`: runs that exist, told again: in the terminal, as one HTML page, as markdown, as JUnit."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ci_tasks import __version__
from ci_tasks.agent.files import pieces_of
from ci_tasks.agent.run_directory import RunDir, read_plan, read_remote, read_status, read_status_if_readable
from ci_tasks.errors import UsageError, some
from ci_tasks.records import BatchResult, RunRecord
from ci_tasks.registry import hooks
from ci_tasks.report.brief import runs as brief_text
from ci_tasks.report.junit import render as render_junit
from ci_tasks.report.markdown import render as render_markdown
from ci_tasks.report.page import Bar, Run, page, phases
from ci_tasks.report.results import batch_result, next_steps, verdict
from ci_tasks.report.table import size
from ci_tasks.results import store
from ci_tasks.results.gpu_samples import by_uuid
from ci_tasks.results.judge_run import gpu_samples
from ci_tasks.results.load import load_record
from ci_tasks.results.runs import events_of, reading_of
from ci_tasks.run.progress import print_results

ReportedRun = tuple[str, RunDir, RunRecord]  # id, directory, record


def report(
    names: Sequence[str], *, html: Path | None = None, junit: Path | None = None, markdown: bool = False,
    brief: bool = False, quiet: bool = False, deviations: bool = False,
) -> BatchResult:  # fmt: skip
    """Tell what the runs that `names` mean did, in files, or as markdown or a brief text on standard output; else in
    the terminal, unless it is to be `quiet`. `deviations`: all of them, also the ones that the label's last run had.
    Raises UnknownName, UsageError."""
    found = {id: run for name in names for id, run in store.find(name)}  # each once, in the order of the names
    loaded = [(id, run, load_record(run)) for id, run in found.items()]
    names = [*found] if len(found) == 1 else list(dict.fromkeys(map(store.batch_of, found)))
    title, directories = some(names, 3), {record.id: run.path for _, run, record in loaded}
    result = batch_result(title, [record for _, _, record in loaded], directories)
    runs, records = [each for each in loaded if each[2] in result.runs], result.runs
    if html is not None:
        made = f"Made by ci-tasks {__version__}, {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}."
        rows = [record.row for record in records]
        kept = [id for id, run, _ in runs if read_status_if_readable(run).kept is not None]
        shown = [_run(*run, alone=rows.count(run[2].row) == 1) for run in runs]
        write_file(html, page(title, shown, made, next_steps(names, records, kept), _places(runs)))
    if junit is not None:
        write_file(junit, [render_junit(title, records, [run.log for _, run, _ in runs])])
    if markdown:
        print(render_markdown(title, records, _places(runs)), end="")
    if brief:
        print(brief_text(title, records), end="")
    has_output = markdown or brief or quiet
    for path in filter(None, (html, junit)):  # the output may be the markdown
        print(f"{path}: {size(path.stat().st_size)}", file=sys.stderr if has_output else sys.stdout)
    if not (html or junit or has_output):
        codes = dict.fromkeys(record.checkout.title for record in records if record.checkout)
        print(f"{title}: {'; '.join([verdict(records), *codes])}")
        print_results(result, all_deviations=deviations)
        for told in hooks("run_report"):
            print("".join(f"{line}\n" for _, run, _ in runs for line in told(run.path)), end="")
    return result


def _places(runs: Sequence[ReportedRun]) -> dict[str, str]:
    """What replaces directories of this machine, and of the runs' hosts, in a text for others."""
    places: dict[str, str] = {}
    for _, run, record in runs:
        called = (item.here for item in record.deviations if item.what == "called workflow")  # --workflow-dir
        places |= {directory: os.path.basename(directory) for directory in called}
        with suppress(OSError, ValueError):  # a job may have changed its files
            plan, remote = read_plan(run), read_remote(run)
            places |= {remote.directory.rpartition("/runs/")[0]: "$WORKSPACE"} if remote else {}
            places |= {here: f"mounts[{ci}]" for ci, here in plan.container.mounts.items()} if plan.container else {}
    return places | {str(store.home()): f"${store.HOME_ENV}", os.path.expanduser("~"): "~"}


def _run(id: str, run: RunDir, record: RunRecord, *, alone: bool) -> Run:
    """The run as the page wants it; `alone`: no other one is of its row. A GPU's samples are found by its UUID."""
    uuids = {peaks.uuid for peaks in record.gpu_use.gpus} if record.gpu_use else set()
    gpus = by_uuid(gpu_samples(run), uuids, ()) if uuids else {}
    log = pieces_of(run.log) if next(pieces_of(run.log), b"") else None
    series = [("here" if alone else id, each) for each in reading_of(run.log).series] if log else []
    return Run(record, _timeline_bar(id, run, record), series, log, gpus)


def _timeline_bar(id: str, run: RunDir, record: RunRecord) -> Bar | None:
    """When the run began, had its GPUs and ended, by our clock; None for one that did not begin."""
    events, status = events_of(run), read_status(run)
    times = [event.t for event in events]
    began = status.started_at or min(times, default=None)
    if began is None:
        return None
    return Bar(
        row=record.row, status=record.status, batch=store.batch_of(id), host=record.host or "", began=began,
        ended=max(began, status.ended_at or max([*times, status.heartbeat_at or began])),
        held=next((event.t for event in reversed(events) if event.event == "gpus"), None),
        gpus=record.gpu_ids, phases=phases(events),
    )  # fmt: skip


def write_file(path: Path, text: Iterable[str]) -> None:
    """Write a file whole or not at all. Raises UsageError if it cannot be written."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # A path that is no UTF-8 may have a lone surrogate in a record.
        with open(beside, "x", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
            out.writelines(text)
        os.replace(beside, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="name another file") from None
    finally:
        beside.unlink(missing_ok=True)
