"""One commit on one host, as an observation; several at once, each in a thread, where ^C reaches them all."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.config import Config
from ci_tasks.errors import Blocked, UsageError
from ci_tasks.flows.interrupts import noticed
from ci_tasks.flows.prepare import Request
from ci_tasks.flows.running import How, perform
from ci_tasks.flows.source import open_source
from ci_tasks.judge.bisection.evidence import BLOCKED, FAIL, MISSING, PASS, Observation
from ci_tasks.model import BLOCKED as WAS_BLOCKED
from ci_tasks.model import CANCELLED, LOST, PASSED, VACUOUS
from ci_tasks.report.bisect import duration
from ci_tasks.report.live import RUNNING, STALLED, WAITING, HostLane, Lane

_REMINDER = 60.0  # seconds after which a run says that it still goes on
# What varies from one run to the next in a reason that has no signature.
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")

Say = Callable[[str], None]


@dataclass
class Interrupts:
    """How often runs in threads are to be interrupted."""

    pressed: int = 0


@dataclass(frozen=True)
class Work:
    """What runs on every commit. `row` is the row's whole name; `signature` the failure that is looked for, if a person
    named it."""

    repo: str
    workflow: str | None
    label: str
    row: str
    config: Config
    signature: str = ""
    image: str | None = None
    reuse: bool = False


@dataclass(frozen=True)
class Order:
    """A commit to run on a host. `must`: a commit without the row is no answer, but an error."""

    position: int
    sha: str
    host: str
    must: bool = False


class Cancelled(Exception):
    """A person ended the run."""


@dataclass
class Watch:
    """The view of a run among others: silent, but for a reminder. A thread hears of ^C only here."""

    name: str
    tell: Say
    interrupts: Interrupts
    heard: int = 0
    spoken: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        self._interrupt()

    def show(self, lanes: Sequence[Lane], hosts: Sequence[HostLane] = (), left: float | None = None) -> None:
        self._interrupt()
        for lane in lanes:
            if lane.state in (RUNNING, STALLED, WAITING) and time.monotonic() - self.spoken > _REMINDER:
                self.spoken = time.monotonic()
                since = f" for {duration(lane.seconds)}" if lane.seconds is not None else ""
                self.tell(f"     {self.name}: {lane.state}{since}{f': {lane.note}' if lane.note else ''}")

    def close(self) -> None:
        pass

    def _interrupt(self) -> None:
        if self.interrupts.pressed > self.heard:
            self.heard = self.interrupts.pressed
            raise KeyboardInterrupt


def run_all(work: Work, orders: Sequence[Order], tell: Say, take: Callable[[Observation], None]) -> None:
    """Run `orders` at once and `take` each result as it comes. Raises KeyboardInterrupt after ^C, when all have ended;
    what had a result by then was taken."""
    interrupts = Interrupts()
    with noticed() as by_person:
        if len(orders) == 1:  # here, where ^C needs no help
            problem = _taken(lambda: run_one(work, orders[0], tell, interrupts), take)
        else:
            problem = _side_by_side(work, orders, tell, take, interrupts)
    if by_person() or isinstance(problem, Cancelled):  # a run may have come to its end all the same
        raise KeyboardInterrupt from None
    if problem:
        raise problem


def _side_by_side(
    work: Work, orders: Sequence[Order], tell: Say, take: Callable[[Observation], None], interrupts: Interrupts
) -> BaseException | None:
    """Returns the first problem; what runs beside it is cancelled."""
    pool = ThreadPoolExecutor(len(orders), "ci-tasks bisect")
    waiting = {pool.submit(run_one, work, order, tell, interrupts) for order in orders}
    problem: BaseException | None = None
    while waiting:
        try:
            ended = {one for one in waiting if one.done()} or wait(waiting, return_when="FIRST_COMPLETED").done
        except KeyboardInterrupt:
            interrupts.pressed += 1
            tell(f"cancelling what runs ({len(waiting)}); ^C again kills it")
            continue
        waiting -= ended
        for one in ended:
            failed = _taken(one.result, take)
            problem = problem or failed
            if problem and not interrupts.pressed:
                interrupts.pressed += 1  # nobody waits for the others
    pool.shutdown()
    return problem


def _taken(result: Callable[[], Observation], take: Callable[[Observation], None]) -> BaseException | None:
    """Why a run has no result."""
    try:
        take(result())
    except (Exception, KeyboardInterrupt) as problem:
        return problem
    return None


def run_one(work: Work, order: Order, tell: Say, interrupts: Interrupts) -> Observation:
    """What one run of a commit says. Raises Cancelled; UsageError only where the row must be there."""
    name = f"{order.sha[:12]} on {order.host}"
    try:
        source = open_source(work.repo, order.sha, work.workflow)
        request = Request(work.label, None, order.host, image=work.image, rows=(work.row,))
        done = perform(source, work.config, request, How(reuse=work.reuse), view=Watch(name, tell, interrupts))
    except KeyboardInterrupt:
        raise Cancelled from None
    except Blocked as problem:
        return Observation(order.position, BLOCKED, reason=problem.message, host=order.host)
    except UsageError as problem:
        if order.must:
            raise
        return Observation(order.position, MISSING, reason=problem.message, host=order.host)
    record = next((one for one in (done.records if done else []) if one["row"] == work.row), None)
    if record is None:
        return Observation(order.position, MISSING, reason=f"no row {work.row}", host=order.host)
    return observed(order, record, work.signature)


def observed(order: Order, record: dict[str, Any], wanted: str = "") -> Observation:
    """What a run's record says of its commit. A failure that is the environment's says nothing, unless it is `wanted`.

    Raises Cancelled."""
    if record["status"] == CANCELLED:
        raise Cancelled
    signature = signature_of(record)
    blocked = record["status"] in (WAS_BLOCKED, LOST) or (record.get("triage") or {}).get("verdict") == WAS_BLOCKED
    if record["status"] == PASSED:
        kind, signature = PASS, ""
    elif blocked and signature != wanted:
        kind, signature = BLOCKED, ""
    else:
        kind = FAIL
    return Observation(
        order.position,
        kind,
        signature,
        reason=record["reason"] or "",
        run=record["id"] or "",
        host=order.host,
        seconds=record["timings"]["seconds"],
    )


def signature_of(record: dict[str, Any]) -> str:
    """What tells this failure from another: triage's word for it, else the reason without what varies."""
    if record["status"] == VACUOUS:
        return VACUOUS
    return str((record.get("triage") or {}).get("signature") or _VARIES.sub("#", record["reason"] or ""))
