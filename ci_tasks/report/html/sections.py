"""What the page says of records: each row, what differs from CI, and the environments that rows share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ci_tasks.records import EXIT_CODES, PASSED, Deviation, RunEnvironment, RunRecord, Triage
from ci_tasks.report.html.words import clock
from ci_tasks.report.table import evidence_of, reason_with_attempts
from ci_tasks.report.triage import describe, numbered_context

_LONG = 300  # characters of a reason in the table; the whole stands below


@dataclass(frozen=True)
class PageRow:
    """A row's run, and the number of its log in the page."""

    record: RunRecord
    log: int | None

    @property
    def took(self) -> str:
        seconds = self.record.timings.seconds
        return "–" if seconds is None else clock(seconds)

    @property
    def gpus(self) -> str:
        return ", ".join(map(str, self.record.gpu_ids)) or str(self.record.gpus or "–")

    @property
    def evidence(self) -> str:
        return evidence_of(self.record)

    @property
    def reason(self) -> str:
        text = reason_with_attempts(self.record)
        return text if len(text) <= _LONG else text[:_LONG] + "…"

    @property
    def failed(self) -> bool:
        return self.record.status in EXIT_CODES and self.record.status != PASSED

    @property
    def triage(self) -> Triage | None:
        return self.record.triage

    @property
    def verdict(self) -> str:
        return describe(self.triage)[0] if self.triage else ""

    @property
    def context(self) -> list[tuple[int, str]]:
        """The lines around the blamed one, numbered."""
        return numbered_context(self.triage) if self.triage else []


def first_start(records: Sequence[RunRecord]) -> str:
    starts = [record.started_at for record in records if record.started_at]
    return min(starts)[:19].replace("T", " ") + " UTC" if starts else ""


def deviations(records: Sequence[RunRecord]) -> list[tuple[Deviation, str]]:
    """What differs from CI, with the rows; a difference that several rows share stands once."""
    rows_by_deviation: dict[Deviation, dict[str, None]] = {}
    for record in records:
        for item in record.deviations:
            rows_by_deviation.setdefault(item, {})[record.row] = None
    every = len({record.row for record in records})
    return [(item, "all" if len(rows) == every else _names([*rows])) for item, rows in rows_by_deviation.items()]


def environments(records: Sequence[RunRecord]) -> list[tuple[str, RunEnvironment]]:
    """The machine, images and packages; rows in one environment share it."""
    groups: list[tuple[RunEnvironment, list[RunRecord]]] = []
    for record in records:
        lasting = _lasting(record.environment)
        group = next((several for environment, several in groups if environment == lasting), None)
        if group is None:
            groups.append((lasting, [record]))
        else:
            group.append(record)
    return [(_names([record.row for record in several]), several[0].environment) for _, several in groups]


def gpus(environment: RunEnvironment) -> str:
    return ", ".join(f"{count} × {name}" for name, count in Counter(gpu.name for gpu in environment.gpus).items())


def _names(rows: Sequence[str]) -> str:
    return ", ".join(rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def _lasting(environment: RunEnvironment) -> RunEnvironment:
    """An environment without what is another for each run in it."""
    containers = tuple(
        replace(container, name="", started_at="", taken_at=None) for container in environment.containers
    )
    return replace(environment, containers=containers, taken_at=None)
