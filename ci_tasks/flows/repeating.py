"""`--repeat` and `--until-fail`: a label's rows again and again on one tree, until the answer is clear.

Every repetition is a run like any other, with its own batch, records and logs. What it takes is pinned: the tree is
cloned once, and whoever edits the checkout meanwhile does not change what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from ci_tasks.config import Config
from ci_tasks.errors import Blocked, CiTasksError
from ci_tasks.flows import interrupts
from ci_tasks.flows.pinning import pinned
from ci_tasks.flows.prepare import Request
from ci_tasks.flows.running import How, Performed, perform
from ci_tasks.flows.site import OpenSite
from ci_tasks.flows.sites import open_site
from ci_tasks.flows.source import Source
from ci_tasks.flows.view import PlainView, View
from ci_tasks.judge import repeats
from ci_tasks.judge.repeats import Goal, Outcome
from ci_tasks.model import BLOCKED, CANCELLED, EXIT_CODES, VACUOUS, Checkout, overall
from ci_tasks.report import repeats as report
from ci_tasks.report import table
from ci_tasks.report.live import HostLane, Lane


class Perform(Protocol):
    """See ci_tasks.flows.running.perform."""

    def __call__(
        self,
        source: Source,
        config: Config,
        request: Request,
        how: How,
        *,
        open_site: OpenSite,
        view: View | None,
    ) -> Performed | None: ...


@dataclass
class Repetitions:
    """What came of repeating. `outcomes` are by row, in the order of the label; `records` of every repetition in turn,
    each with its log. `interrupted`: a person pressed ^C."""

    goal: Goal
    checkout: Checkout
    count: int = 0
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    records: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    interrupted: bool = False

    @property
    def wanted(self) -> list[str]:
        """The rows that still need evidence. The first failure of any row ends `--until-fail` for all."""
        if self.goal.until_fail and any(repeats.tally(seen).failed for seen in self.outcomes.values()):
            return []
        return [row for row, seen in self.outcomes.items() if not repeats.over(seen, self.goal)]

    @property
    def exit_code(self) -> int:
        """0 where every row passed as often as it was to, 1 where one failed, 125 where one was given up, 130 after
        ^C."""
        statuses = [repeats.status(seen, self.goal) for seen in self.outcomes.values()]
        return EXIT_CODES[CANCELLED if self.interrupted else overall(statuses)]

    def rows(self) -> list[report.Repeated]:
        """Every row as the report wants it; the last repetition of a kind stands for its like."""
        examples: dict[tuple[str, str], report.Example] = {}
        for record, log in self.records:
            line = (record["triage"] or {}).get("line") or record["reason"] or ""
            examples[record["row"], _kind(repeats.outcome(record))] = report.Example(line, log)
        return [
            report.Repeated(
                row,
                repeats.tally(seen),
                self._stopped(seen),
                {kind: example for (of, kind), example in examples.items() if of == row},
            )
            for row, seen in self.outcomes.items()
        ]

    def _stopped(self, seen: Sequence[Outcome]) -> str:
        return repeats.over(seen, self.goal) if repeats.tally(seen).ran < self.goal.repeats else ""


def repeat(
    source: Source,
    config: Config,
    request: Request,
    goal: Goal,
    how: How = How(),
    *,
    open_site: OpenSite = open_site,
    perform: Perform = perform,
) -> int:
    """Run a label's rows until `goal` is reached or the answer is clear, and say what it is. Returns the exit code."""
    print(source.headline, flush=True)
    done = perform_repeatedly(source, config, request, goal, how, open_site=open_site, perform=perform)
    if not done.outcomes and not done.interrupted:
        return EXIT_CODES[VACUOUS]  # `perform` has said why
    conclude(done, request.label)
    return done.exit_code


def perform_repeatedly(
    source: Source,
    config: Config,
    request: Request,
    goal: Goal,
    how: How = How(),
    *,
    open_site: OpenSite = open_site,
    perform: Perform = perform,
) -> Repetitions:
    """Repeat, with a line for each repetition. No outcome where the label has no row. ^C ends it with what there is.

    Raises what `perform` raises; if that is not the first repetition, what came before is told.
    """
    with pinned(source, request.base) as pin, interrupts.noticed() as interrupted:
        found = Repetitions(goal, pin.checkout)
        print(report.announcement(goal.repeats, goal.until_fail, pin.checkout), flush=True)
        once = partial(perform, source, config, open_site=pin.around(open_site), view=_Reminders())
        again = request
        try:
            while (found.wanted or not found.count) and not found.interrupted:
                # The venv of the first repetition serves the others; every one has a fresh checkout.
                done = _one(found, partial(once, again, replace(how, reuse=how.reuse or found.count > 0)))
                if done is None:
                    break
                _take_in(found, done)
                found.interrupted = interrupted()
                again = replace(request, rows=tuple(found.wanted))
        except KeyboardInterrupt:
            found.interrupted = True
        except CiTasksError:
            if found.count:
                conclude(found, request.label)
            raise
    return found


def conclude(done: Repetitions, label: str) -> None:
    """Print the table that ends it, and what differs from CI."""
    rows = done.rows()
    many = "" if done.count == 1 else "s"
    differs = table.deviations([record for record, _ in done.records])
    print("\n".join(["", *report.results(rows, repeats.EQUAL_FAILURES), "", *differs, ""]) if rows else "")
    ended = "; interrupted" if done.interrupted else ""
    print(
        f"{label}: {done.count} repetition{many} on tree {done.checkout.tree[:12]}: {report.summary(rows)}{ended}",
        flush=True,
    )


def _one(found: Repetitions, once: Callable[[], Performed | None]) -> Performed | None:
    """One repetition. A host that cannot be reached blocks it for all its rows, unless it never could."""
    try:
        return once()
    except Blocked as problem:
        if not found.count:
            raise
        records: list[dict[str, Any]] = [
            {"row": row, "status": BLOCKED, "reason": problem.message, "triage": None, "deviations": []}
            for row in found.wanted
        ]
        return Performed("", records, [""] * len(records))


def _take_in(found: Repetitions, done: Performed) -> None:
    """Count a repetition, and say how it went."""
    found.count += 1
    for record, log in zip(done.records, done.logs, strict=True):
        found.outcomes.setdefault(record["row"], []).append(repeats.outcome(record))
        found.records.append((record, log))
    ended = {record["row"]: report.short(_kind(repeats.outcome(record))) for record in done.records}
    counts = [repeats.tally(seen) for seen in found.outcomes.values()]
    print(report.progress(found.count, ended, counts), flush=True)


def _kind(outcome: Outcome) -> str:
    """The status, or of a failure its way."""
    return outcome.way if repeats.tally([outcome]).failed else outcome.status


class _Reminders(PlainView):
    """A line a repetition is enough: of the rows in it, a person hears what is unusual, and now and then that they
    still run. Their logs would bury the lines that count."""

    def show(self, lanes: Sequence[Lane], hosts: Sequence[HostLane] = (), left: float | None = None) -> None:
        self._states.update({lane.row: lane.state for lane in lanes})
        super().show(lanes, hosts, left)
