"""JUnit XML as pytest writes it → counts and the first failure."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from ci_tasks.agent.quick_dataclass import dataclass


@dataclass(frozen=True)
class Junit:
    """`tests` counts what was collected, skipped ones included; `first` is the first failure's name and message.

    An expected failure was executed; pytest writes it as a kind of skip."""

    tests: int
    failures: int
    skipped: int
    first: str = ""

    @property
    def executed(self) -> int:
        return self.tests - self.skipped


def read_junit(text: bytes) -> Junit | None:
    """The counts of a JUnit file, or None for a file that is not one: a run that was killed leaves half of it."""
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text or b"\0" in text:
        return None  # pytest writes none of them; an entity bomb, perhaps hidden in UTF-16, would be dangerous
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError):  # the last two for encodings that nobody knows
        return None
    cases = list(root.iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if _is_skipped(case)]
    return Junit(len(cases), len(bad), len(skipped), _first(bad[0]) if bad else "")


def _is_skipped(case: ElementTree.Element) -> bool:
    skipped = case.find("skipped")
    return skipped is not None and skipped.get("type") != "pytest.xfail"


def _first(case: ElementTree.Element) -> str:
    fault = case.find("failure")
    if fault is None:
        fault = case.find("error")
    message = (fault.get("message") or "").splitlines() if fault is not None else []
    return f"{case.get('name')}: {message[0] if message else 'failed'}"
