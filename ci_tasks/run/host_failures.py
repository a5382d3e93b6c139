"""Whether a failure before any test is the host's fault or the row's. Pure.

A host with another Python or a broken image fails every row alike, within seconds. That it is the host is shown where
several rows failed alike there, none got as far as its test, and rows of other hosts did. The same failure on another
host shows that it is not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import field
from typing import Literal

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.records import BLOCKED, FAILED, PASSED, VACUOUS, RunRecord

ENOUGH = 2  # rows that have to fail alike
Cause = Literal["host", "row", "open"]


def is_early(record: RunRecord) -> bool:
    """Whether the row failed, or was blocked, before its test began."""
    return record.status in (FAILED, BLOCKED) and record.evidence.kind == "set-up"


def shows_no_test(record: RunRecord) -> bool:
    """Whether nothing shows that the row's test began: of a test that takes no GPUs nobody can say more."""
    silent = record.status == FAILED and record.evidence.kind in ("script", "none") and not record.gpu_ids
    return is_early(record) or (silent and record.started_at is not None)


@dataclass
class HostFailures:
    """What the ended rows of a command say of its hosts."""

    _early: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    _good: set[str] = field(default_factory=set)
    _cleared: set[str] = field(default_factory=set)

    def add(self, record: RunRecord) -> None:
        """The end of an attempt. One that was blocked, lost or cancelled says nothing."""
        if shows_no_test(record):
            self._early[record.host or ""][_kind(record)].add(record.row)
        elif record.status in (PASSED, VACUOUS, FAILED):
            self._good.add(record.host or "")

    def has_got_through(self, host: str) -> bool:
        """Whether a row's test began there."""
        return host in self._good

    def clear(self, host: str) -> None:
        """Nothing more will be shown against the host: its rows count as failed."""
        self._cleared.add(host)

    def cause(self, record: RunRecord) -> Cause:
        """Whose fault the failure is, as far as has been shown."""
        host, kind = record.host or "", _kind(record)
        if self._is_elsewhere(kind, host) or host in self._good | self._cleared:
            return "row"
        return "host" if len(self._early[host][kind]) >= ENOUGH and self._good else "open"

    def is_suspect(self, host: str) -> bool:
        """Whether enough rows failed alike there that no further one should go, before it is known why."""
        kinds = self._early.get(host, {})
        return host not in self._good | self._cleared and any(
            len(rows) >= ENOUGH and not self._is_elsewhere(kind, host) for kind, rows in kinds.items()
        )

    def reason(self, record: RunRecord) -> str:
        """Why the host is to blame."""
        rows = len(self._early[record.host or ""][_kind(record)])
        others = ", ".join(sorted(self._good))
        return f"{rows} rows failed alike before any test was seen, none on {others} did: {record.reason}"

    def _is_elsewhere(self, kind: str, host: str) -> bool:
        return any(kind in kinds for other, kinds in self._early.items() if other != host)


def _kind(record: RunRecord) -> str:
    """Equal for failures that are alike."""
    return record.signature or re.sub(r"\d+", "#", record.reason)
