"""A triage in a terminal, or in a pasted comment: what failed, why, and the lines around it."""

from __future__ import annotations

import re
import shlex

from ci_tasks.errors import printable
from ci_tasks.logs.causes import DEPENDENCY, UNKNOWN
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, PASSED, Hang, RunRecord, Triage
from ci_tasks.report.table import Table, wrapped

VERDICTS = {
    FAILED: "failed: the code under test, or its configuration",
    BLOCKED: "blocked: the environment, not the code",
    CANCELLED: "cancelled: a person or a newer run stopped it",
    PASSED: "passed: the job did not fail",
    UNKNOWN: "unknown: the log shows no end of the job; `triage --exit-code N` takes its exit code",
}
_MOST_TESTS, _FEW_TESTS = 10, 2  # that are named, and that a command names
_MOST_OTHERS = 3
_MOST_GROUPS = 20
_SURE = 0.8  # from here on the other candidates are not worth a person's time
_WIDE = 200
_NARROWEST = 24  # columns of a log's line
# What GitHub puts before each line, alone or behind gh's columns: it would fill a terminal's width.
_CI_PREFIX = re.compile(
    r"^(?:[^\t]{1,300}\t[^\t]{0,500}\t)?\ufeff?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(?:\d{4})?Z(?: |$)"
)


def describe(triage: Triage, width: int | None = None, source: str = "", more: str = "") -> list[str]:
    """The lines of `triage`; in a terminal they wrap. With the `source`, the log's file or URL, the next command is the
    last, with `more` options."""
    facts: list[tuple[str, str]] = []
    if triage.verdict not in (PASSED, UNKNOWN):
        where = f"line {triage.line_no} of the log" if triage.line_no else "no line"
        where += f", in {' > '.join(triage.frames)}" if triage.frames else ""
        facts = [
            ("cause:", f"{triage.reason} ({triage.cause})" if triage.reason else triage.cause),
            *([("tests:", tests_sentence(triage))] if triage.tests else []),
            ("line:", _cut(triage.text or triage.line or "(no line says why)")),
            ("where:", f"{where}, confidence {triage.confidence:.2f}"),
            *([("signature:", _cut(triage.signature))] if triage.signature else []),
        ]
    if triage.verdict != PASSED and triage.confidence < _SURE:
        others = triage.candidates[:_MOST_OTHERS]
        facts += [
            ("or:", f"{_cut(_CI_PREFIX.sub('', other.line, count=1))} (line {other.line_no}, {other.cause})")
            for other in others
        ]
    facts += [("job:", f"{name}: {_cut(how)}") for name, how in triage.jobs.items()]
    body = Table([(f"{name:<10}", text) for name, text in facts]).text(width)
    command = next_command(triage, source, more) if source else ""
    follows = [f"next: {printable(command)}"] if command else []
    around = numbered_context(triage) if facts else []
    context = ["", *(part for each in around for part in _numbered(*each, triage.line_no, width))] if around[1:] else []
    shown = [*body, *map(printable, context), *(["", *follows] if follows else [])]
    return [VERDICTS.get(triage.verdict, triage.verdict), *shown]


def tests_sentence(triage: Triage) -> str:
    """`2 tests failed: tests/a.py::x (a.py:42), …`"""
    count, shown = len(triage.tests), ", ".join(triage.tests[:_MOST_TESTS])
    return f"{count} test{'s' * (count > 1)} failed: {shown}{', …' if count > _MOST_TESTS else ''}"


def next_command(triage: Triage, source: str, more: str = "") -> str:
    """What to do about it; "" if nothing is known to have failed. `source` is the log's file or URL, `-` what was
    piped in, `more` are further options. Of few tests that failed, it runs those alone."""
    option = "--url" if source.startswith("https://") else "--log"
    log = f"{'FILE' if source == '-' else shlex.quote(source)}{more}"
    tests = [test.partition(" (")[0].partition("[")[0] for test in triage.tests if ".py::" in test]
    only = "".join(f" --test {shlex.quote(test)}" for test in tests) if len(triage.tests) <= _FEW_TESTS else ""
    first, *others = [name for names in triage.jobs for name in re.split(r", (?![^(]*\))", names)] or [""]
    job = f" --job {shlex.quote(first)}" if others else ""  # of several that failed, `reproduce` asks for one
    blocked = "start the job again; if it ran on your host, `ci-tasks doctor --host H`"
    if triage.group == DEPENDENCY:
        blocked = "the job's image, or one of its install steps, lacks the package: start it again when it has it"
    return {FAILED: f"ci-tasks reproduce {option} {log}{job}{only}", BLOCKED: blocked}.get(triage.verdict, "")


def hang_groups(hang: Hang, width: int | None = None) -> list[str]:
    """The place of each process when a run hung."""
    rows = [(group.who, group.where) for group in hang.groups[:_MOST_GROUPS]]
    return Table(rows, ("PROCESSES", "WHERE")).text(width) if rows else []


def exceptions_of(record: RunRecord) -> list[tuple[str, str]]:
    """(what it is, exception) of the exceptions that the probe saw in the row's processes."""
    return [("uncaught", printable(text)) for text in record.probe.exceptions] if record.probe else []


def numbered_context(triage: Triage) -> list[tuple[int, str]]:
    """The lines around the blamed one with their numbers, without what CI puts before each; none if it is not among
    them."""
    if triage.line not in triage.context or not triage.line_no:
        return []
    first = triage.line_no - triage.context.index(triage.line)
    return list(enumerate((_CI_PREFIX.sub("", line, count=1) for line in triage.context), first))


def _numbered(number: int, line: str, failing_line: int | None, width: int | None) -> list[str]:
    left = f"{'>' if number == failing_line else ' '} {number:>6} | "
    if width is None or len(left) + len(line) <= width:
        return [left + _cut(line)]
    first, *more = wrapped(_cut(line), max(width - len(left), _NARROWEST))
    return [left + first, *(" " * len(left) + part for part in more)]


def _cut(text: str) -> str:
    if len(text) <= _WIDE:
        return text
    end = text.rfind(" ", _WIDE - _NARROWEST, _WIDE - 1) + 1  # behind a word, if one ends there
    return text[: end or _WIDE - 1] + "…"
