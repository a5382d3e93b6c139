"""A whole run as JUnit XML, for the readers of GitHub, GitLab and Jenkins: one suite, a test case a row."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ci_tasks.model import BLOCKED, CANCELLED, FAILED, LOST, PASSED, VACUOUS
from ci_tasks.report.table import attempts, one_line, why

Record = Mapping[str, Any]
_ELEMENTS = {FAILED: "failure", VACUOUS: "failure", BLOCKED: "error", LOST: "error", CANCELLED: "skipped"}
# What XML 1.0 has no way to write, escaped or not.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(name: str, records: Sequence[Record], logs: Sequence[str]) -> str:
    """The XML of a run called `name`; `logs` are the paths of its rows' logs, in the order of `records`."""
    elements = [_element(record) for record in records]
    times = [_seconds(record) for record in records]
    counts = {
        "tests": str(len(records)),
        "failures": str(elements.count("failure")),
        "errors": str(elements.count("error")),
        "time": f"{sum(times):.3f}",
    }
    root = ElementTree.Element("testsuites", {"name": _text(name), **counts})
    skipped = {"skipped": str(elements.count("skipped"))}  # Jenkins' schema knows it of a suite only
    suite = ElementTree.SubElement(root, "testsuite", {"name": _text(name), **counts, **skipped, **_timestamp(records)})
    for record, log, element in zip(records, logs, elements, strict=True):
        _case(suite, record, log, element)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _case(suite: ElementTree.Element, record: Record, log: str, element: str | None) -> None:
    names = {"classname": _text(record.get("label") or ""), "name": _text(record.get("row") or "")}
    case = ElementTree.SubElement(suite, "testcase", {**names, "time": f"{_seconds(record):.3f}"})
    properties = ElementTree.SubElement(case, "properties")
    for key, value in _properties(record):
        if value not in (None, ""):
            ElementTree.SubElement(properties, "property", {"name": key, "value": _text(value)})
    if element is not None:
        message = why(record) or str(record["status"])
        fault = ElementTree.SubElement(case, element, {"message": _text(message), "type": _text(record["status"])})
        fault.text = _text("\n".join(_said(record, log)))


def _said(record: Record, log: str) -> Iterator[str]:
    """What a person needs who has nothing but this file."""
    yield str(record.get("reason") or record["status"])
    found = record.get("triage") or {}
    line = str(found.get("line") or "")
    if line and one_line(line) not in one_line(str(record.get("reason") or "")):
        yield line
    if before := attempts(record):
        yield before
    if record.get("started_at") and log:  # a row that never began has none
        yield f"log: {log}{':' + str(found['line_no']) if found.get('line_no') else ''}"


def _properties(record: Record) -> Iterator[tuple[str, Any]]:
    checkout, environment = record.get("checkout") or {}, record.get("environment") or {}
    container: Mapping[str, Any] = next(iter(environment.get("containers") or ()), {})
    yield "status", record["status"]
    yield "host", record.get("host")
    yield "attempt", record.get("attempt") or 1
    yield "run", record.get("id")
    yield "commit", checkout.get("commit")
    yield "tree", checkout.get("tree")
    yield "image", environment.get("image")
    yield "digest", next(iter(container.get("digests") or ()), None)
    yield "cause", (record.get("triage") or {}).get("cause")
    for number, one in enumerate(record.get("earlier") or (), 1):
        yield f"attempt {number}", f"{one.get('id', '')} {one.get('status', '')} on {one.get('host', '')}".strip()


def _element(record: Record) -> str | None:
    """A status that no run ends with is an error: the file must not be greener than the run."""
    return None if record["status"] == PASSED else _ELEMENTS.get(record["status"], "error")


def _seconds(record: Record) -> float:
    return float((record.get("timings") or {}).get("seconds") or 0.0)


def _timestamp(records: Sequence[Record]) -> dict[str, str]:
    """When the first row began: ISO without an offset, as the schema has it, and so in UTC like the records."""
    begun = [str(record["started_at"]) for record in records if record.get("started_at")]
    return {"timestamp": _text(min(begun)[: len("2026-01-01T00:00:00")])} if begun else {}


def _text(value: Any) -> str:
    return _NO_XML.sub("\ufffd", str(value))
