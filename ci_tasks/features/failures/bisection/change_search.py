"""Which of many changes make a row fail, alone or together: one bisection after another, as `axis` describes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.commits import Commit
from ci_tasks.features.failures.bisection import report
from ci_tasks.features.failures.bisection.axis import PACKAGES, Change, SearchRange, along_changes
from ci_tasks.features.failures.bisection.bisection import (
    EXIT_CODES,
    FOUND,
    INTERRUPTED,
    UNCLEAR,
    Bisection,
    BisectionResult,
    CulpritCandidate,
)
from ci_tasks.features.failures.bisection.bisection_state import BisectionKey, open_state
from ci_tasks.features.failures.bisection.metric import MetricRule
from ci_tasks.features.failures.bisection.observations import BEFORE_GOOD, FAIL, Observation
from ci_tasks.features.failures.bisection.packages import shown_use
from ci_tasks.features.failures.bisection.run_commits import RowUnderTest
from ci_tasks.features.failures.bisection.strategy import (
    FAILS_AT_GOOD,
    BisectionDecision,
    BisectionGoal,
    CulpritFound,
    InvalidRange,
    Undecided,
    assess,
    claim,
)

ENOUGH = 0.5  # how probable it is, before anything ran, that what was named needs nothing beside it


@dataclass(frozen=True)
class SearchStage:
    """One bisection: the `needed` changes are everywhere, those of `rest` are searched. `known` are runs of before that
    had all of them, `earlier` those that lacked one that is needed. `probability`: that all of `needed` are."""

    rest: tuple[Change, ...]
    needed: tuple[Change, ...] = ()
    target: str = ""
    known: tuple[Observation, ...] = ()
    earlier: tuple[Observation, ...] = ()
    probability: float = 1.0

    def goal(self, search: SearchRange, repeat: int) -> BisectionGoal:
        return BisectionGoal(search.graph, self.target, repeat, self.earlier, ENOUGH if self.needed else 0.0)

    def after(self, found: CulpritFound, goal: BisectionGoal, observations: Sequence[Observation]) -> SearchStage:
        """The next one: what was found is needed, and what comes before it is searched."""
        at = found.position
        has_all = [each for each in observations if each.position >= at]
        lacks = [each for each in observations if each.position < at]
        return SearchStage(
            self.rest[: at - 1],
            (self.rest[at - 1], *self.needed),
            assess(goal, observations).run_counts.target,
            tuple(replace(each, position=at - 1) for each in has_all),
            (*self.earlier, *(replace(each, position=BEFORE_GOOD) for each in lacks)),
            self.probability * found.probability,
        )

    def is_enough(
        self, decision: BisectionDecision | None, goal: BisectionGoal, observations: Sequence[Observation]
    ) -> float:
        """How probable it is that the needed ones are all; 0 where the decision says otherwise."""
        if not (self.needed and isinstance(decision, InvalidRange) and decision.why == FAILS_AT_GOOD):
            return 0.0
        return claim(assess(goal, observations).now, 0)


@dataclass
class ChangeSearch:
    """A search of `changes` with one commit."""

    axis: str
    commit: Commit
    changes: tuple[Change, ...]
    work: RowUnderTest
    subject: BisectionKey
    hosts: Sequence[str]
    repeat: int = 0
    fresh: bool = False
    metric: MetricRule | None = None
    runs: int = field(default=0, init=False)

    def run(self) -> BisectionResult:
        """Raises UsageError where the ends are not good and bad, Blocked where no host can go on."""
        target = self.metric.signature if self.metric else self.work.signature
        stage, begun = SearchStage(self.changes, target=target), ""
        while True:
            search = along_changes(self.commit, self.axis, self.changes, stage.needed, stage.rest)
            goal = stage.goal(search, self.repeat)
            subject = replace(self.subject, good=search.points[0].key, bad=search.points[-1].key, begun=begun)
            with open_state(subject, [point.key for point in search.points], fresh=self.fresh) as state:
                bisection = Bisection(search, goal, self.work, state, self.hosts, stage.known, self.metric)
                decision = bisection.decide()
                self.metric = bisection.metric.kept() if bisection.metric else None
                self.runs += len(state.observations)
                begun = begun or next((each.run for each in state.observations), "")
            observations = bisection.observations
            if isinstance(decision, CulpritFound):
                bisection.print_line(report.needed(stage.rest[decision.position - 1], decision.probability))
                stage = stage.after(decision, goal, observations)
                if stage.rest:
                    continue
                return self._found(bisection, stage, stage.probability)
            if decision is None:
                return self._result(INTERRUPTED, ())
            if enough := stage.is_enough(decision, goal, observations):
                return self._found(bisection, stage, stage.probability * enough)
            if isinstance(decision, InvalidRange) and not stage.needed:
                raise bisection.refusal(decision)
            return self._unclear(bisection, stage, decision)

    def _found(self, bisection: Bisection, stage: SearchStage, probability: float) -> BisectionResult:
        changes = [self._described(change, bisection) for change in stage.needed]
        fails = f"{self.metric.name} is worse" if self.metric else "the row fails as the bad end does"
        bisection.print_line("\n".join(report.changes_found(changes, probability, self.runs, fails)))
        return self._result(FOUND, (self._candidate(stage.needed, probability),))

    def _described(self, change: Change, bisection: Bisection) -> str:
        """A package with what the probe saw of it in the last run that failed with it."""
        if self.axis != PACKAGES:
            return str(change)
        failed = [each.run for each in bisection.observations if each.kind == FAIL and each.run]
        seen = shown_use(failed[-1], [change.name])[change.name] if failed and change.bad else ""
        return f"{change}{f' ({seen})' if seen else ''}"

    def _unclear(self, bisection: Bisection, stage: SearchStage, decision: Undecided | InvalidRange) -> BisectionResult:
        """Each candidate with what is needed beside it."""
        left = decision.left if isinstance(decision, Undecided) else ()
        candidates = [
            self._candidate((stage.rest[position - 1], *stage.needed) if position else stage.needed, probability)
            for position, probability in left
        ] or [self._candidate(stage.needed, stage.probability)]
        shown = [(each.subject, each.probability) for each in candidates]
        bisection.print_line("\n".join(report.changes_unclear(shown, self.runs)))
        return self._result(UNCLEAR, tuple(candidates))

    def _candidate(self, needed: Sequence[Change], probability: float) -> CulpritCandidate:
        names = tuple(map(str, needed))
        return CulpritCandidate(self.commit.sha, "; ".join(names), probability, changes=names)

    def _result(self, result: str, candidates: tuple[CulpritCandidate, ...]) -> BisectionResult:
        return BisectionResult(result, EXIT_CODES[result], candidates, self.runs)
