"""A row's way through a command: waiting, on a host, perhaps on another one after that, ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.flows.site import Look, Prepared
from ci_tasks.flows.stations import Station
from ci_tasks.model import BLOCKED, CANCELLED, FAILED, LOST, VACUOUS, Row
from ci_tasks.runner.layout import END_CANCELLED, RunDir, read_json, write_json

STOPPED = "stopped"  # key of a record: the row ended because another one had failed


@dataclass(frozen=True)
class Policy:
    """What a person wants of several rows. `fail_fast`: the first failure ends the others; `retry_failed`: a failed row
    gets one more attempt; `explain`: every decision is said."""

    fail_fast: bool = False
    retry_failed: bool = False
    explain: bool = False


@dataclass
class Course:
    """One row. `prepared` and `station` are those of its present attempt, `since` when it began there, `asked` when
    it began to wait; `earlier` tells how former ones ended, and `why` what it waits for. `moving`: it is being taken
    back from a host that it never reached. `resumed`: its attempt is an earlier command's."""

    position: int
    row: Row
    seconds: float
    prepared: Prepared | None = None
    station: Station | None = None
    since: float = 0.0
    asked: float = 0.0
    record: dict[str, Any] | None = None
    log: str = ""
    why: str = ""
    moving: bool = False
    resumed: bool = False
    stopped: bool = False
    earlier: list[dict[str, Any]] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        return self.record is None and self.prepared is None

    @property
    def runs(self) -> bool:
        return self.record is None and self.prepared is not None

    @property
    def attempt(self) -> int:
        return len(self.earlier) + 1

    def may_run_on(self, station: Station) -> bool:
        """Whether the host can run it, as far as is known, and an earlier attempt did not end there."""
        return (
            not station.problem
            and not station.lacks(self.row)
            and all(one["host"] != station.name or one.get("again") for one in self.earlier)
        )

    def is_void(self, look: Look) -> bool:
        """Whether its attempt, which is over, was none: it was taken back from a host that had vanished, in time or
        just after it had begun there; or it was on its way when an earlier command was left."""
        assert self.prepared is not None
        run = self.prepared.run
        if self.moving:
            ended = look.never[0] if look.never else read_json(run.status).get("end")
            return ended in (CANCELLED, END_CANCELLED)
        nothing_there = bool(look.never) and bool(read_json(run.remote).get("complete"))
        return self.resumed and nothing_there and not read_json(run.status)

    def end(self, record: dict[str, Any], run: RunDir) -> None:
        """Its record, with what came before."""
        more: dict[str, Any] = {}
        if self.earlier:
            more = {"attempt": self.attempt, "earlier": self.earlier}
        if self.stopped:
            more[STOPPED] = True
        if more:
            record = {**record, **more}
            write_json(run.record, record)
        self.record, self.log = record, run.log

    def try_again(self, record: dict[str, Any], stations: Sequence[Station], policy: Policy) -> bool:
        """Whether the row gets another attempt after this one; then it waits for it. A failed row never does, unless
        it is asked for: another result would only hide the first."""
        failed = record["status"] in (FAILED, VACUOUS)
        if not (record["status"] in (BLOCKED, LOST) or (failed and policy.retry_failed)):
            return False
        if failed and any(one["status"] in (FAILED, VACUOUS) for one in self.earlier):
            return False
        ended = {key: record[key] for key in ("id", "host", "status", "reason")}
        self.earlier.append(ended)
        elsewhere = any(self.may_run_on(station) for station in stations)
        if failed and not elsewhere:
            ended["again"] = True  # a flaky test may be asked where it failed, too
            elsewhere = any(self.may_run_on(station) for station in stations)
        if not elsewhere:
            self.earlier.pop()
            return False
        self.prepared = self.station = None
        return True


def statuses(records: Sequence[dict[str, Any]]) -> list[str]:
    """The statuses that count for the whole: a row that was ended for another's failure says nothing of its own."""
    counted = [record["status"] for record in records if not (record.get(STOPPED) and record["status"] == CANCELLED)]
    return counted or [record["status"] for record in records]
