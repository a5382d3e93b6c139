"""The page as a stream of text: its parts in order, the logs' data last but for the scripts that read them.

One file, which asks for nothing: the policy in its head forbids every request, and lets run no script but those of
our own, by their digests. So a log that says `<script>` is text twice over.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from ci_tasks import resources
from ci_tasks.records import RunRecord, overall
from ci_tasks.report.html import sections
from ci_tasks.report.html.curves import Curve, figures
from ci_tasks.report.html.logdata import script, shares
from ci_tasks.report.html.templates import template
from ci_tasks.report.html.timeline import Bar, timeline

_SCRIPTS = ("page.js", "view.js", "viewer.js")  # in this order: the last uses the one before


@dataclass(frozen=True)
class Log:
    """A log that the page shows: `pieces` are its bytes, cut anywhere and read once, `size` how many; `failing_line`
    is the 1-based number of the line to open it at."""

    title: str
    size: int
    pieces: Iterable[bytes]
    failing_line: int | None = None


@dataclass(frozen=True)
class Run:
    """One row's run: its record, when it had which GPUs, its metrics and its log, as far as it has them."""

    record: RunRecord
    bar: Bar | None = None
    curves: Sequence[Curve] = field(default_factory=tuple)
    log: Log | None = None


@dataclass(frozen=True)
class Ci:
    """CI's own log of the row that was run: its metrics are drawn beside ours."""

    row: str
    curves: Sequence[Curve]
    log: Log


def page(title: str, runs: Sequence[Run], ci: Ci | None = None, made: str = "") -> Iterator[str]:
    """The page's text. `made` says when and by what, at its foot. Reads each log once, when its turn comes."""
    logs = [run.log for run in runs if run.log is not None] + ([ci.log] if ci else [])
    records = [run.record for run in runs]
    counts = Counter(record.status for record in records)
    style, scripts = _asset("page.css"), [_asset(name) for name in _SCRIPTS]
    return template("page.html.j2").generate(
        title=title,
        policy=_policy(style, scripts),
        style=Markup(style),
        counts=counts,
        overall=overall([record.counted_status for record in records]),
        first_start=sections.first_start(records),
        checkouts=list(dict.fromkeys(record.checkout for record in records if record.checkout)),
        rows=[sections.PageRow(*pair) for pair in zip(records, _places(runs), strict=True)],
        deviations=sections.deviations(records),
        timeline=Markup(timeline([run.bar for run in runs if run.bar is not None])),
        metrics=_metrics(runs, ci),
        environments=sections.environments(records),
        gpus=sections.gpus,
        logs=logs,
        data=_data(logs),
        made=made,
        worker=Markup(_asset("worker.js")),
        scripts=[Markup(script) for script in scripts],
    )


def _places(runs: Sequence[Run]) -> list[int | None]:
    """The number of each run's log in the page."""
    numbers = iter(range(len(runs)))
    return [None if run.log is None else next(numbers) for run in runs]


def _policy(style: str, scripts: Sequence[str]) -> str:
    return (
        f"default-src 'none'; script-src {' '.join(map(_digest, scripts))}; worker-src blob:; img-src data:;"
        f" style-src {_digest(style)}; base-uri 'none'; form-action 'none'"
    )


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


def _data(logs: Sequence[Log]) -> Iterator[Markup]:
    for number, (log, keep) in enumerate(zip(logs, shares(log.size for log in logs), strict=True)):
        for element in script(number, log.pieces, log.size, keep, log.failing_line):
            yield Markup(element)


def _asset(name: str) -> str:
    return resources.text(f"report/html/{name}")


def _digest(text: str) -> str:
    """How a policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
