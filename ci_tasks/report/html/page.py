"""The page as a stream of text: its parts in order, the logs' data last but for the scripts that read them.

One file, which asks for nothing: the policy in its head forbids every request, and lets run no script but those of
our own, by their digests. So a log that says `<script>` is text twice over.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ci_tasks import resources
from ci_tasks.report.html import sections
from ci_tasks.report.html.curves import Curve, figures
from ci_tasks.report.html.logdata import script, shares
from ci_tasks.report.html.timeline import Bar, timeline
from ci_tasks.report.html.words import esc

_SCRIPTS = ("page.js", "view.js", "viewer.js")  # in this order: the last uses the one before
_SECTIONS = ("results", "failures", "deviations", "timeline", "metrics", "environment", "logs")


@dataclass(frozen=True)
class Log:
    """A log that the page shows: `pieces` are its bytes, cut anywhere and read once, `size` how many; `blamed` is the
    1-based number of the line to open it at."""

    title: str
    size: int
    pieces: Iterable[bytes]
    blamed: int | None = None


@dataclass(frozen=True)
class Run:
    """One row's run: its record, when it had which GPUs, its metrics and its log, as far as it has them."""

    record: sections.Record
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
    places = _places(runs)
    yield _head(title)
    yield from _body(title, runs, ci, places, logs)
    for number, (log, keep) in enumerate(zip(logs, shares(log.size for log in logs), strict=True)):
        yield from script(number, log.pieces, log.size, keep, log.blamed)
    yield f"<footer>{esc(made)}</footer>\n" if made else ""
    yield f'<script type="text/plain" id="worker">\n{_asset("worker.js")}</script>\n'
    yield "".join(f"<script>{_asset(name)}</script>\n" for name in _SCRIPTS) + "</body>\n</html>\n"


def _places(runs: Sequence[Run]) -> list[int | None]:
    """The number of each run's log in the page."""
    numbers = iter(range(len(runs)))
    return [None if run.log is None else next(numbers) for run in runs]


def _head(title: str) -> str:
    style = _asset("page.css")
    allowed = " ".join(_digest(_asset(name)) for name in _SCRIPTS)
    policy = (
        f"default-src 'none'; script-src {allowed}; worker-src blob:; img-src data:; style-src {_digest(style)};"
        " base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n'
        f"<title>{esc(title)}</title>\n<style>{style}</style>\n</head>\n"
    )


def _body(
    title: str, runs: Sequence[Run], ci: Ci | None, places: Sequence[int | None], logs: Sequence[Log]
) -> Iterator[str]:
    records = [run.record for run in runs]
    links = "".join(f'<li><a href="#{name}">{name.capitalize()}</a></li>' for name in _SECTIONS)
    yield (
        '<body>\n<a class="skip" href="#logs">Skip to the logs</a>\n<header>\n'
        f'<h1>{esc(title)}</h1>\n<button type="button" id="theme" hidden>Theme: automatic</button>\n'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>\n'
    )
    yield f'<section aria-label="Summary">\n{sections.summary(records)}</section>\n'
    yield _section("results", "Results", sections.results(records, places))
    yield _section("failures", "What failed", sections.failures(records, places))
    yield _section("deviations", "Different from CI", sections.deviations(records))
    yield _section("timeline", "Timeline", timeline([run.bar for run in runs if run.bar is not None]))
    yield _section("metrics", "Metrics over steps", _metrics(runs, ci))
    yield _section("environment", "Environment", sections.environment(records))
    yield _section("logs", "Logs", _viewer(logs))
    yield "</main>\n"


def _section(name: str, title: str, content: str) -> str:
    head = f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">{title}</h2>\n'
    return f"{head}{content}</section>\n"


def _metrics(runs: Sequence[Run], ci: Ci | None) -> str:
    """A row's runs share its drawings, and CI's are in them."""
    rows: dict[str, list[Curve]] = {}
    for run in runs:
        rows.setdefault(str(run.record["row"]), []).extend(run.curves)
    if ci is not None:
        rows.setdefault(ci.row, []).extend(ci.curves)
    drawn = [
        f"<h3>{esc(row)}</h3>\n{figures(row, curves, f'chart{number}')}"
        for number, (row, curves) in enumerate(rows.items())
        if curves
    ]
    return "".join(drawn) or "<p>No log has metrics of training steps.</p>\n"


def _viewer(logs: Sequence[Log]) -> str:
    if not logs:
        return "<p>There is no log.</p>\n"
    options = "".join(
        f'<option value="{number}" data-blamed="{log.blamed or ""}">{esc(log.title)}</option>'
        for number, log in enumerate(logs)
    )
    return _asset("viewer.html").replace("<!-- options -->", options)


def _asset(name: str) -> str:
    return resources.text(f"report/html/{name}")


def _digest(text: str) -> str:
    """How a policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
