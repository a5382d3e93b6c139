"""The report as one HTML page that asks for nothing, as a stream of text: what failed first, the logs last.

What a job or a person wrote is escaped wherever it is printed, and the policy in the page's head admits no script and
no style but our own, by its digest.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import jinja2
from markupsafe import Markup

from ci_tasks import resources
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import GpuSample
from ci_tasks.errors import printable, some
from ci_tasks.logs.lines import blocks, segments, visible
from ci_tasks.logs.metrics import Series
from ci_tasks.records import PLANNED, RUNNING, RunEnvironment, RunRecord, overall
from ci_tasks.report.html.charts import Bar, gpu_charts, metric_charts, timeline
from ci_tasks.report.outcome import NextStep, failures, verdict
from ci_tasks.report.public import Public
from ci_tasks.report.results import attempts, evidence_of, rows_by_deviation, took
from ci_tasks.report.triage import describe, exceptions_of, numbered_context

MOST_LINES = 2000  # of a log
_ALL_LINES = 80_000  # of all logs, so that GitHub takes the page as an attachment (25 MB)
_LONGEST = 1000  # characters of a line
_SYMBOLS = {"passed": "✓", "failed": "✗", "vacuous": "∅", "blocked": "⊘", "cancelled": "■", "lost": "?"}
# They would show what stands beside them in another order, or not at all.
_HIDING = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True)
class Log:
    """A log whose end the page shows: `pieces` are its bytes, cut anywhere and read once."""

    title: str
    pieces: Iterable[bytes]


@dataclass(frozen=True)
class Run:
    """One row's run: its record, when it had which GPUs, its metrics with whose they are, its log, and the samples of
    its GPUs by UUID, as far as it has them."""

    record: RunRecord
    bar: Bar | None = None
    series: Sequence[tuple[str, Series]] = field(default_factory=tuple)
    log: Log | None = None
    gpus: Mapping[str, Sequence[GpuSample]] = field(default_factory=dict)


def page(
    title: str, runs: Sequence[Run], more_logs: Sequence[Log] = (), made: str = "", steps: Sequence[NextStep] = ()
) -> Iterator[str]:
    """The page's text. `title` names the runs, `made` says at its foot when and by what, `steps` are the commands that
    come next. Reads each log once, when its turn comes."""
    records = [run.record for run in runs]
    logs = [*(run.log for run in runs if run.log is not None), *more_logs]
    numbers = {run.record.id: str(logs.index(run.log)) for run in runs if run.log is not None}
    most = min(MOST_LINES, _ALL_LINES // max(len(logs), 1))
    style = resources.text("report/html/page.css")
    template = _environment(Public(records)).from_string(resources.text("report/html/page.html.j2"))
    return template.generate(
        title=title,
        style=Markup(style),
        style_digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        verdict=verdict(records),
        overall=overall([record.counted_status for record in records]),
        unfinished=any(record.status in (RUNNING, PLANNED) for record in records),
        records=records,
        hosts=list(dict.fromkeys(record.host for record in records if record.host)),
        checkouts=list(dict.fromkeys(record.checkout for record in records if record.checkout)),
        started=min((record.started_at for record in records if record.started_at), default="")[:19].replace("T", " "),
        failures=failures(records),
        steps=steps,
        log_of=numbers,
        gpus=[(run.record, charts) for run in runs if (charts := gpu_charts(run.gpus))],
        metrics=_metrics(runs),
        timeline=timeline([run.bar for run in runs if run.bar is not None]),
        deviations=rows_by_deviation(records),
        environments=_environments(records),
        logs=[(log.title, _last_lines(log.pieces, most)) for log in logs],
        made=made,
    )


def _environment(public: Public) -> jinja2.Environment:
    def shown(value: Any) -> Any:
        """Markup is our own; all else is text."""
        if isinstance(value, (Markup, jinja2.Undefined)):
            return value
        return "" if value is None else _HIDING.sub("�", printable(public.text(str(value))))

    environment = jinja2.Environment(
        autoescape=True, finalize=shown, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        symbols=_SYMBOLS, took=took, evidence_of=evidence_of, attempts=attempts, some=some, describe=describe,
        context_of=numbered_context, exceptions_of=exceptions_of,
    )  # fmt: skip
    return environment


def _metrics(runs: Sequence[Run]) -> list[tuple[str, Any]]:
    """A row's runs share its charts."""
    rows: dict[str, list[tuple[str, Series]]] = {}
    for run in runs:
        rows.setdefault(run.record.row, []).extend(run.series)
    return [(row, metric_charts(series)) for row, series in rows.items() if series]


def _environments(records: Sequence[RunRecord]) -> list[tuple[list[RunRecord], RunEnvironment]]:
    """The machines, images and packages with the rows that had them, without what is another for each run."""
    groups: list[tuple[list[RunRecord], RunEnvironment]] = []
    for record in records:
        containers = tuple(replace(each, name="", started_at="") for each in record.environment.containers)
        lasting = replace(record.environment, containers=containers)
        alike = next((rows for rows, environment in groups if environment == lasting), None)
        if alike is None:
            groups.append(([record], lasting))
        else:
            alike.append(record)
    return groups


def _last_lines(pieces: Iterable[bytes], most: int) -> Iterator[str]:
    """The last lines of a log with their numbers, and of a progress bar what a terminal showed last. Only as much of
    the log as has them is in memory."""
    kept: deque[tuple[bytes, int]] = deque()  # blocks, and how many lines end in each
    total = 0
    for block in blocks(pieces):
        kept.append((block, block.count(b"\n")))
        total += kept[-1][1]
        while sum(count for _, count in kept) - kept[0][1] > most:
            kept.popleft()
    lines = b"".join(block for block, _ in kept).removesuffix(b"\n").split(b"\n")
    first = total - sum(count for _, count in kept) + 1 + max(len(lines) - most, 0)
    if first > 1:
        yield f"… {first - 1:,} lines before: `ci-tasks logs RUN --raw` prints the whole log …\n"
    for number, line in enumerate(lines[-most:], first):
        text = visible(segments(line)[-1], _LONGEST + 1)
        yield f"{number:7d} {text[:_LONGEST]}{' … cut' if len(text) > _LONGEST else ''}\n"
