"""The report as a stream of text: its parts in order, the logs last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from markupsafe import Markup

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.records import PLANNED, RUNNING, RunRecord, overall
from ci_tasks.report.html import sections
from ci_tasks.report.html.curves import Curve, figures
from ci_tasks.report.html.gpu_charts import RowGpus, gpu_charts
from ci_tasks.report.html.logdata import shares, shown_lines
from ci_tasks.report.html.templates import assets, template
from ci_tasks.report.html.timeline import Bar, timeline
from ci_tasks.report.outcome import NextStep, verdict

_SECTIONS = {
    "timeline": "Timeline",
    "gpus": "GPUs over time",
    "deviations": "Different from CI",
    "failures": "Failures",
    "rows": "Rows",
    "metrics": "Metrics",
    "environment": "Environment",
    "logs": "Logs",
}


@dataclass(frozen=True)
class Log:
    """A log that the page shows: `pieces` are its bytes, cut anywhere and read once, `size` how many; `failing_line`
    is the 1-based number of the line to mark."""

    title: str
    size: int
    pieces: Iterable[bytes]
    failing_line: int | None = None


@dataclass(frozen=True)
class Run:
    """One row's run: its record, when it had which GPUs and what these did, its metrics and its log, as far as it has
    them."""

    record: RunRecord
    bar: Bar | None = None
    curves: Sequence[Curve] = field(default_factory=tuple)
    log: Log | None = None
    gpus: RowGpus | None = None


@dataclass(frozen=True)
class Ci:
    """CI's own log of the row that was run: its metrics are drawn beside ours."""

    row: str
    curves: Sequence[Curve]
    log: Log


def page(
    title: str, runs: Sequence[Run], ci: Ci | None = None, made: str = "", steps: Sequence[NextStep] = ()
) -> Iterator[str]:
    """The page's text. `title` names the runs, `made` says at its foot when and by what, `steps` are the commands that
    come next. Reads each log once, when its turn comes."""
    logs = [run.log for run in runs if run.log is not None] + ([ci.log] if ci else [])
    records = [run.record for run in runs]
    numbers = _log_numbers(runs)
    causes = sections.page_causes(records, numbers)
    bars = [run.bar for run in runs if run.bar is not None]
    shared, own = sections.deviations(records)
    metrics = _metrics(runs, ci)
    sampled = [run.gpus for run in runs if run.gpus is not None]
    absent = {"timeline": not bars, "gpus": not sampled, "failures": not causes, "metrics": not metrics}
    return template("report.html.j2").generate(
        assets=assets(),
        sections=[(name, words) for name, words in _SECTIONS.items() if not absent.get(name)],
        title=title,
        verdict=verdict(records),
        overall=overall([record.counted_status for record in records]),
        unfinished=any(record.status in (RUNNING, PLANNED) for record in records),
        labels=sections.names([record.label for record in records]),
        hosts=sections.names([record.host for record in records if record.host]),
        checkouts=sections.checkouts(records),
        first_start=sections.first_start(records),
        duration=sections.durations(bars),
        causes=causes,
        steps=steps,
        timeline=Markup(timeline(bars)) if bars else None,
        gpu_use=Markup(gpu_charts(sampled)) if sampled else None,
        shared_deviations=shared,
        own_deviations=own,
        rows=sections.page_rows(records, numbers, causes),
        metrics=metrics,
        environments=sections.environments(records),
        gpus=sections.gpus,
        logs=logs,
        log_lines=_log_lines(logs),
        made=made,
    )


def _log_numbers(runs: Sequence[Run]) -> list[int | None]:
    numbers = iter(range(len(runs)))
    return [None if run.log is None else next(numbers) for run in runs]


def _metrics(runs: Sequence[Run], ci: Ci | None) -> list[tuple[str, Markup]]:
    """A row's runs share its drawings, and CI's are in them."""
    rows: dict[str, list[Curve]] = {}
    for run in runs:
        rows.setdefault(run.record.row, []).extend(run.curves)
    if ci is not None:
        rows.setdefault(ci.row, []).extend(ci.curves)
    return [
        (row, Markup(figures(row, curves, f"chart{number}")))
        for number, (row, curves) in enumerate(rows.items())
        if curves
    ]


def _log_lines(logs: Sequence[Log]) -> list[Iterator[Markup]]:
    return [
        shown_lines(log.pieces, log.size, keep, log.failing_line, f"log-{number}-line")
        for number, (log, keep) in enumerate(zip(logs, shares(log.size for log in logs), strict=True))
    ]
