"""What the page says of records: what ran, the rows and how they failed, what differs from CI, and the environments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout, Deviation
from ci_tasks.errors import some
from ci_tasks.records import RunEnvironment, RunRecord, Triage
from ci_tasks.report.html.timeline import Bar
from ci_tasks.report.html.words import clock
from ci_tasks.report.outcome import Cause, Failure
from ci_tasks.report.outcome import causes as causes_of
from ci_tasks.report.results import attempts, evidence_of, rows_by_deviation
from ci_tasks.report.triage import describe, exceptions_of, numbered_context


@dataclass(frozen=True)
class PageRow:
    record: RunRecord
    log: int | None
    failure: int | None = None
    cause: str = ""

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
    def attempts(self) -> str:
        return attempts(self.record)


@dataclass(frozen=True)
class PageFailure:
    """A failure, with the rows that have it. `number` is its place in the page."""

    number: int
    failure: Failure
    rows: tuple[PageRow, ...]

    @property
    def triage(self) -> Triage | None:
        return self.failure.triage

    @property
    def verdict(self) -> str:
        return describe(self.triage)[0] if self.triage else ""

    @property
    def context(self) -> list[tuple[int, str]]:
        """The lines around the failing one in the first row's log, numbered."""
        return numbered_context(self.triage) if self.triage else []

    @property
    def exceptions(self) -> list[tuple[str, str]]:
        """Those that the probe saw in the first row's processes."""
        return exceptions_of(self.rows[0].record)


@dataclass(frozen=True)
class PageCause:
    """A cause, with its failures; `rows` are all that it hit."""

    cause: Cause
    failures: tuple[PageFailure, ...]

    @property
    def rows(self) -> list[PageRow]:
        return [row for failure in self.failures for row in failure.rows]


def page_causes(records: Sequence[RunRecord], logs: Sequence[int | None]) -> list[PageCause]:
    """What made rows fail; `logs` are the numbers of the records' logs in the page."""
    log_of = {id(record): log for record, log in zip(records, logs, strict=True)}
    numbers = count(1)

    def shown(failure: Failure, cause: Cause) -> PageFailure:
        number = next(numbers)
        name = cause.name or cause.explanation
        rows = (PageRow(record, log_of[id(record)], number, name) for record in failure.records)
        return PageFailure(number, failure, tuple(rows))

    return [
        PageCause(cause, tuple(shown(failure, cause) for failure in cause.failures)) for cause in causes_of(records)
    ]


def page_rows(records: Sequence[RunRecord], logs: Sequence[int | None], causes: Sequence[PageCause]) -> list[PageRow]:
    failed = {id(row.record): row for cause in causes for row in cause.rows}
    return [failed.get(id(record), PageRow(record, log)) for record, log in zip(records, logs, strict=True)]


def names(values: Sequence[str]) -> list[tuple[str, int]]:
    return [*Counter(values).items()]


def durations(bars: Sequence[Bar]) -> str:
    """From the first row's start to the last one's end, for each batch."""
    batches: dict[str, list[Bar]] = {}
    for bar in bars:
        batches.setdefault(bar.batch, []).append(bar)
    spans = [max(bar.ended for bar in several) - min(bar.began for bar in several) for several in batches.values()]
    return ", ".join(map(clock, spans))


def first_start(records: Sequence[RunRecord]) -> str:
    starts = [record.started_at for record in records if record.started_at]
    return min(starts)[:19].replace("T", " ") + " UTC" if starts else ""


def checkouts(records: Sequence[RunRecord]) -> list[Checkout]:
    return list(dict.fromkeys(record.checkout for record in records if record.checkout))


def deviations(records: Sequence[RunRecord]) -> tuple[list[tuple[Deviation, str]], list[tuple[Deviation, str]]]:
    """What differs from CI in every row, and what does so in some; each with a text that names the rows."""
    hosts: dict[str, set[str]] = {}
    for record in records:
        hosts.setdefault(record.host or "", set()).add(record.row)
    every = {record.row for record in records}
    shared, own = [], []
    for item, rows in rows_by_deviation(records).items():
        if set(rows) == every:
            shared.append((item, "all"))
        else:
            host = next((host for host, of_host in hosts.items() if host and of_host == set(rows)), None)
            own.append((item, f"all {len(rows)} on {host}" if host and len(rows) > 1 else some(rows, 3)))
    return shared, own


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
    return [(some([record.row for record in several], 3), several[0].environment) for _, several in groups]


def gpus(environment: RunEnvironment) -> str:
    return ", ".join(f"{count} × {name}" for name, count in Counter(gpu.name for gpu in environment.gpus).items())


def _lasting(environment: RunEnvironment) -> RunEnvironment:
    """An environment without what is another for each run in it."""
    containers = tuple(
        replace(container, name="", started_at="", taken_at=None) for container in environment.containers
    )
    return replace(environment, containers=containers, taken_at=None)
