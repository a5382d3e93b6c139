"""JUnit XML as pytest writes it → counts and the first failure."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass


@dataclass(frozen=True)
class Junit:
    """`tests` counts what was collected, skipped ones included; `first` is the first failure's name and message."""

    tests: int
    failures: int
    skipped: int
    first: str = ""

    @property
    def executed(self) -> int:
        return self.tests - self.skipped


def read_junit(text: bytes) -> Junit | None:
    """The counts of a JUnit file, or None for a file that is not one: a run that was killed leaves half of it."""
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        return None  # pytest writes neither, and an entity bomb is the one way to make this file dangerous
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return None
    cases = list(root.iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return Junit(len(cases), len(bad), len(skipped), _first(bad[0]) if bad else "")


def _first(case: ElementTree.Element) -> str:
    fault = case.find("failure")
    if fault is None:
        fault = case.find("error")
    message = (fault.get("message") or "").splitlines() if fault is not None else []
    return f"{case.get('name')}: {message[0] if message else 'failed'}"
