"""Runs as markdown: fit for a GitHub job summary, or for a comment.

GitHub takes a megabyte a step and drops the whole summary beyond it, so the text stays below: what failed stands first.
What leaves this machine, this text or a page, is without our directories, home directories and names of users.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ci_tasks.errors import short
from ci_tasks.records import PASSED, RunRecord
from ci_tasks.report import results
from ci_tasks.report.results import verdict
from ci_tasks.report.table import Table, cell, fenced
from ci_tasks.report.triage import describe, exceptions_of, hang_groups

MOST = 900_000  # bytes
_SYMBOLS = {"passed": "✅", "failed": "❌", "vacuous": "⚠️", "blocked": "🚧", "cancelled": "⏹️", "lost": "❓"}


def render(name: str, records: Sequence[RunRecord], places: Mapping[str, str] | None = None) -> str:
    """The summary of the runs that `name` stands for; ends with a newline. `places` are as in Public."""
    records = sorted(records, key=lambda record: record.status == PASSED)
    public = Public(records, places or {})
    parts = [public.text(part) for part in (*_head(name, records), *_failures(records), _deviations(records))]
    kept: list[str] = []
    left = MOST
    for part in parts:
        left -= len(part.encode(errors="surrogatepass")) + 1
        if left < 0:
            kept.append(f"\n{len(parts) - len(kept)} more rows or failures did not fit.")
            break
        kept.append(part)
    return "\n".join(kept).rstrip("\n") + "\n"


def _head(name: str, records: Sequence[RunRecord]) -> Iterator[str]:
    checkouts = {(checkout.title, checkout.tree) for checkout in (r.checkout for r in records) if checkout}
    tested = " ".join(f"Commit `{title}`, tree `{short(tree)}`." for title, tree in sorted(checkouts))
    yield f"## {cell(verdict(records))}\n\n{f'{cell(name)}. {tested}'.rstrip()}\n"
    body = [
        (f"{_SYMBOLS.get(r.status, '⏳')} {r.status}", row, r.host or "–", results.took(r), results.evidence_of(r),
         results.reason_with_attempts(r))
        for row, r in zip(results.rows_with_code(records), records, strict=True)
    ]  # fmt: skip
    yield from Table(body, ("status", "row", "host", "time", "evidence", "reason")).markdown()
    yield ""
    if lines := [f"- {cell(row)}: {cell(sentence)}" for row, sentence in results.gpu_sentences(records)]:
        yield "\n".join([results.GPU_HEADING, "", *lines, ""])


def _failures(records: Sequence[RunRecord]) -> Iterator[str]:
    for record in records:
        if record.status == PASSED or record.triage is None:
            continue
        lines = [*hang_groups(record.hang), ""] if record.hang else []
        lines += describe(record.triage)
        if exceptions := exceptions_of(record):
            lines += ["", *(f"{kind}: {text}" for kind, text in exceptions)]
        yield _details(f"{cell(record.row)}: {cell(record.triage.cause)}", fenced(lines))


def _deviations(records: Sequence[RunRecord]) -> str:
    rows = results.rows_by_deviation(records)
    every = len({record.row for record in records})
    body = [
        (item.what, item.ci, item.here, item.why, "all" if len(names) == every else f"{len(names)} of {every}")
        for item, names in rows.items()
    ]
    table = Table(body, ("what", "CI", "here", "why", "rows"))
    return _details(f"Different from CI: {len(rows)}", table.markdown()) if body else ""


def _details(summary: str, lines: Sequence[str]) -> str:
    return "\n".join([f"<details><summary>{summary}</summary>", "", *lines, "", "</details>", ""])


_HOME = re.compile(r"(?<![\w.])/(?:home|Users)/([\w.-]+)")
_BOUNDED = r"(?<![\w.~}})>-]){}(?![\w-]|\.\w)"  # not a part of a longer path or word
_SHORTEST = 3  # letters of a name that is hidden wherever it stands
_SHARED = {"root", "runner", "ubuntu", "user", "slime", "verl"}  # accounts that name no person, or are words of ours


class Public:
    """Hides what would show this machine and its person: the records' checkouts and overlays have their own names, and
    the directories `places` the names that are given for them, such as `$CI_TASKS_HOME`."""

    def __init__(self, records: Sequence[RunRecord], places: Mapping[str, str]) -> None:
        checkouts = [record.checkout for record in records if record.checkout]
        trees = [tree.path for checkout in checkouts for tree in (checkout, *checkout.overlays)]
        named = {path: path.rpartition("/")[2] for path in trees} | dict(places)
        longest_first = sorted((path for path in named if len(path) > 1), key=len, reverse=True)
        self._names = {form: named[path] for path in longest_first for form in (path, cell(path))}
        own = {form for path in trees for form in (path, cell(path))}  # also in `-I/x/slime` and `/x/slime.log`
        forms = [re.escape(form) if form in own else _BOUNDED.format(re.escape(form)) for form in self._names]
        self._paths = re.compile("|".join([*forms, _HOME.pattern]))
        homes = [*trees, *(path for path, name in places.items() if name == "~")]
        people = {match[1] for path in homes if (match := _HOME.match(path)) and match[1]} - _SHARED
        self._people = _words(name for name in people if len(name) >= _SHORTEST)

    def text(self, text: str) -> str:
        if "/" in text:
            text = self._paths.sub(lambda path: self._names.get(path[0], "~"), text)
        return self._people.sub("USER", text)


def _words(texts: Iterable[str]) -> re.Pattern[str]:
    """Any of the texts, if it is not a part of a longer word; nothing without texts."""
    return re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, texts)) or '(?!)'})(?![\w.-])")
