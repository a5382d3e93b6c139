"""Findings that a project knows and lives with: a file that can only shrink."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ci_tasks.errors import UsageError
from ci_tasks.judge.lint.finding import Finding

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Compared:
    """`new` findings are in no baseline; `known` ones are; `gone` entries are found no more, and have to leave it."""

    new: tuple[Finding, ...]
    known: tuple[Finding, ...]
    gone: tuple[Key, ...]


def read(text: str, file: str) -> frozenset[Key]:
    """The entries of a baseline file. Raises UsageError for a text that is none."""
    try:
        entries = json.loads(text)["findings"]
        return frozenset((str(one["rule"]), str(one["file"]), str(one["subject"])) for one in entries)
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{file} is no baseline of lint", hint="`ci-tasks lint --write-baseline FILE` makes one"
        ) from None


def write(entries: Sequence[Key]) -> str:
    """The text of a baseline file, in one order, so that its history shows what left it."""
    listed = [{"rule": rule, "file": file, "subject": subject} for rule, file, subject in sorted(set(entries))]
    return json.dumps({"version": 1, "findings": listed}, indent=1, ensure_ascii=False) + "\n"


def compare(findings: Sequence[Finding], entries: frozenset[Key]) -> Compared:
    """Which findings are new, and which entries are found no more."""
    keys = {finding.key for finding in findings}
    return Compared(
        new=tuple(finding for finding in findings if finding.key not in entries),
        known=tuple(finding for finding in findings if finding.key in entries),
        gone=tuple(sorted(entries - keys)),
    )
