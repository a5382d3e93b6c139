"""A whole run as JUnit XML, for the readers of GitHub, GitLab and Jenkins: one suite, a test case a row."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence

from ci_tasks import safe_output
from ci_tasks.errors import one_line
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, LOST, PASSED, VACUOUS, RunRecord
from ci_tasks.report.results import attempts, cause_and_reason

_ELEMENTS = {FAILED: "failure", VACUOUS: "failure", BLOCKED: "error", LOST: "error", CANCELLED: "skipped"}
# What XML 1.0 has no way to write, escaped or not.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(name: str, records: Sequence[RunRecord], logs: Sequence[str]) -> str:
    """The XML of a run called `name`; `logs` are the paths of its rows' logs, in the order of `records`."""
    # A status that no run ends with is an error: the file must not be greener than the run.
    elements = [None if one.status == PASSED else _ELEMENTS.get(one.status, "error") for one in records]
    elements = elements if {"failure", "error"} & {*elements} else [each and "error" for each in elements]
    begun = [record.started_at for record in records if record.started_at]
    counts = {
        "tests": str(len(records)),
        "failures": str(elements.count("failure")),
        "errors": str(elements.count("error")),
        "time": f"{sum(map(_seconds, records)):.3f}",
    }
    root = ElementTree.Element("testsuites", {"name": _text(name), **counts})
    of_suite = {"skipped": str(elements.count("skipped"))}  # Jenkins' schema knows it of a suite only
    # ISO without an offset, as the schema has it, and so in UTC like the records.
    of_suite |= {"timestamp": _text(min(begun)[: len("2026-01-01T00:00:00")])} if begun else {}
    suite = ElementTree.SubElement(root, "testsuite", {"name": _text(name), **counts, **of_suite})
    for record, log, element in zip(records, logs, elements, strict=True):
        _case(suite, record, log, element)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _case(suite: ElementTree.Element, record: RunRecord, log: str, element: str | None) -> None:
    names = {"classname": _text(record.label), "name": _text(record.row)}
    case = ElementTree.SubElement(suite, "testcase", {**names, "time": f"{_seconds(record):.3f}"})
    properties = ElementTree.SubElement(case, "properties")
    for key, value in _properties(record).items():
        if value:
            ElementTree.SubElement(properties, "property", {"name": key, "value": _text(value)})
    if element is not None:
        message = cause_and_reason(record) or record.status
        fault = ElementTree.SubElement(case, element, {"message": _text(message), "type": _text(record.status)})
        fault.text = _text("\n".join(_fault_lines(record, log)))


def _fault_lines(record: RunRecord, log: str) -> Iterator[str]:
    """What a person needs who has nothing but this file."""
    yield record.reason or record.status
    line = record.triage.line if record.triage else ""
    if line and one_line(line) not in one_line(record.reason):
        yield line
    if before := attempts(record):
        yield before
    if record.started_at and log:  # a row that never began has none
        yield f"log: {log}{f':{record.line_no}' if record.line_no else ''}"


def _properties(record: RunRecord) -> dict[str, str | None]:
    checkout, around = record.checkout, record.environment
    found = {"status": record.status, "host": record.host, "attempt": str(len(record.attempts) or 1), "run": record.id}
    found |= {"commit": checkout.commit, "tree": checkout.tree} if checkout else {}
    found |= {"image": around.image, "digest": around.digest, "cause": record.cause}
    for number, attempt in enumerate(record.earlier, 1):
        found[f"attempt {number}"] = f"{attempt.id} {attempt.status} on {attempt.host or ''}".strip()
    return found


def _seconds(record: RunRecord) -> float:
    return record.timings.seconds or 0.0


def _text(value: str) -> str:
    """Its reader may be a terminal: what controls or reorders it is shown as text there too."""
    return _NO_XML.sub("\ufffd", safe_output.escape(value))
