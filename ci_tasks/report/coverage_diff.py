"""What a change adds to a coverage map and takes from it, as Markdown and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ci_tasks.report.coverage import escaped
from ci_tasks.report.coverage_page import document, text
from ci_tasks.suites.coverage.diff import Difference


def markdown(changed: Difference) -> str:
    lines = ["# CI coverage: what changes", "", f"From {escaped(changed.before)} to {escaped(changed.after)}.", ""]
    for title, items in sections(changed):
        lines += [f"## {title} ({len(items)})", "", *(f"- {escaped(item)}" for item in items), ""]
    if changed.empty:
        lines += ["The same coverage.", ""]
    return "\n".join(lines)


def page(changed: Difference) -> str:
    body = [f"<p>From {text(changed.before)} to {text(changed.after)}.</p>"]
    for title, items in sections(changed):
        body.append(f"<h2>{text(title)} ({len(items)})</h2><ul>")
        body += [f"<li>{text(item)}</li>" for item in items]
        body.append("</ul>")
    if changed.empty:
        body.append("<p>The same coverage.</p>")
    return document("CI coverage: what changes", "\n".join(body))


def sections(changed: Difference) -> Iterator[tuple[str, Sequence[str]]]:
    """Title and items, what is lost first: that is what a reviewer has to see."""
    altered = [
        f"{one.label}: {one.test}: {one.what}: {one.before or '–'} → {one.after or '–'}" for one in changed.altered
    ]
    for title, items in (
        ("No longer exercised by any row", changed.lost),
        ("Exercised for the first time", changed.gained),
        ("Rows removed", changed.removed),
        ("Rows added", changed.added),
        ("Rows that changed", altered),
        ("Gaps opened", changed.opened),
        ("Gaps closed", changed.closed),
    ):
        if items:
            yield title, items
