"""JUnit XML as pytest writes it → counts and the first failure."""

from __future__ import annotations

from collections.abc import Iterable
from xml.parsers import expat

from ci_tasks.agent.quick_dataclass import dataclass

_FAULTS = ("failure", "error")


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


def read_junit(pieces: Iterable[bytes]) -> Junit | None:
    """The counts of a JUnit file, read as a stream; None for a file that is not one: a run that was killed leaves half
    of it."""
    counts = _Counts()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _refuse  # pytest writes none; an entity bomb needs one
    parser.StartElementHandler, parser.EndElementHandler = counts.begin, counts.end
    try:
        for piece in pieces:
            if b"\0" in piece:  # UTF-16
                return None
            parser.Parse(piece, False)
        parser.Parse(b"", True)
    except (expat.ExpatError, ValueError, LookupError):  # the last two for unknown encodings
        return None
    return Junit(counts.tests, counts.failures, counts.skipped, counts.first)


def _refuse(*_declaration: object) -> None:
    raise ValueError("a document type")


class _Counts:
    """`inside` are the elements that are open, `faults` what lies directly below the test case: its failure's or
    error's first line."""

    def __init__(self) -> None:
        self.tests = self.failures = self.skipped = 0
        self.first = ""
        self._inside: list[str] = []
        self._name = ""
        self._faults: dict[str, str] = {}
        self._is_skipped = False

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "testcase":
            self._name, self._faults, self._is_skipped = str(attributes.get("name")), {}, False
        elif self._inside[-1:] == ["testcase"]:
            if tag in _FAULTS:
                self._faults.setdefault(tag, next(iter(attributes.get("message", "").splitlines()), "failed"))
            self._is_skipped |= tag == "skipped" and attributes.get("type") != "pytest.xfail"
        self._inside.append(tag)

    def end(self, tag: str) -> None:
        self._inside.pop()
        if tag == "testcase":
            self.tests += 1
            self.skipped += self._is_skipped
            if self._faults:
                said = self._faults.get("failure") or self._faults["error"]
                self.first = self.first or f"{self._name}: {said}"
                self.failures += 1
