"""The trainings of a run, its preflight and its end, judged together: the guide's summary.

the first that holds                                         result
focused Bridge checks failed                                 Fail
megatron.bridge is not the local checkout's                  Blocked  (nothing that follows is evidence)
a training failed in or after Bridge-managed construction,   Fail
or missed a criterion of its level
something failed before it, or the environment did           Blocked
a criterion of the requested level was not shown             Blocked
none of these                                                Pass
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ci_tasks.judge.verl import wording
from ci_tasks.judge.verl.blame import OF_PREFLIGHT, Stage, blame, of_preflight, of_reason, own_fault
from ci_tasks.judge.verl.facts import BRIDGE_CHECKS, DRIVER, WORKER, Mark, Metrics, RunFacts
from ci_tasks.judge.verl.imports import Imports, imports
from ci_tasks.judge.verl.training import Judged, RunEnd, judge_training
from ci_tasks.suites.verl.levels import Training, Wish
from ci_tasks.suites.verl.summary import (
    BACKEND,
    BLOCKED,
    CHECKS,
    FAIL,
    IMPORT,
    LOG,
    NOT_REQUESTED,
    PASS,
    SKIPPED,
    VARIANTS,
    Deliverable,
    Provenance,
    Summary,
)

_FAILED = ("fail", "blocked")


def judge(
    wish: Wish,
    trainings: Sequence[Training],
    facts: RunFacts,
    ended: RunEnd,
    provenance: Provenance,
    baseline: Metrics | None = None,
) -> Summary:
    """What a run showed. `trainings` are those of the wish, in order; `baseline` are metrics to compare level 5's
    with."""
    case = _Case(wish, trainings, facts, ended, provenance, baseline)
    result, why = case.result()
    return Summary(
        result=result,
        sentence=wording.sentence(result, why, wish, case.passed_level, case.judged),
        requested=wording.requested(wish),
        checkpoint=wording.checkpoint(wish, facts),
        deliverables=case.deliverables(),
        evidence=wording.evidence(provenance, facts, case.judged),
        limitations=wording.limitations(wish, facts, case.judged),
        follow_ups=wording.follow_ups(result, case.stages(), case.judged, facts),
        passed_level=case.passed_level,
        preflight=tuple(Deliverable(mark.key, mark.status, mark.text) for mark in facts.preflight.values()),
        curve=wording.curve(case.judged),
    )


class _Case:
    """Everything that was found, by what it means."""

    def __init__(
        self,
        wish: Wish,
        trainings: Sequence[Training],
        facts: RunFacts,
        ended: RunEnd,
        provenance: Provenance,
        baseline: Metrics | None,
    ) -> None:
        self.wish, self.facts, self.ended, self.log = wish, facts, ended, provenance.log
        self.imports: Imports = imports(facts, provenance.bridge_root)
        self.judged = self._judged(trainings, baseline)

    @property
    def passed_level(self) -> int | None:
        """The highest level whose criteria were met, with those of the levels below it that it needs."""
        if not self.imports.shown or self._mark(BRIDGE_CHECKS) == "fail" or not self._logged:
            return None
        reached = None
        for level in sorted({one.training.level for one in self.judged}):
            if any(one.status != PASS for one in self.judged if one.training.level == level):
                break
            reached = level
        return reached

    def result(self) -> tuple[str, str]:
        """The result and why; the table in the module's docstring."""
        if self._mark(BRIDGE_CHECKS) == "fail":
            return FAIL, f"focused Bridge checks failed: {self.facts.preflight[BRIDGE_CHECKS].text}"
        if self.imports.wrong:
            return (FAIL if own_fault(self.imports.wrong) else BLOCKED), f"{IMPORT}: {self.imports.wrong}"
        for status in (FAIL, BLOCKED):
            for one in self.judged:
                if one.status == status:
                    return status, f"{one.training.name}: {one.text}"
        if self.passed_level == self.wish.level and not self.ended.stopped and self.ended.status != "failed":
            return PASS, ""
        return self._unfinished()

    def deliverables(self) -> tuple[Deliverable, ...]:
        smoke = [one for one in self.judged if one.training.level == 0]
        rest = [one for one in self.judged if one.training.level > 0]
        return (
            self._checks(),
            self._import(),
            Deliverable(BACKEND, *wording.together(smoke, 0)),
            self._variants(rest),
            self._log(),
        )

    def stages(self) -> Iterator[Stage]:
        """Where something failed, for what to do next."""
        if self.imports.wrong:
            yield of_preflight(WORKER, self.imports.wrong)
            return
        yield from (one.stage for one in self.judged if one.stage is not None)
        if not any(one.facts for one in self.judged):
            yield from (of_preflight(mark.key, mark.text) for mark in self._blocking())
            if self.ended.stopped and not list(self._blocking()):
                yield of_reason(self.ended.reason)
            elif not list(self._blocking()) and self.facts.error is not None:
                yield blame(self.facts.error, False).stage

    def _judged(self, trainings: Sequence[Training], baseline: Metrics | None) -> list[Judged]:
        found: list[Judged] = []
        for training in trainings:
            if self.imports.wrong:
                text = "stopped: megatron.bridge is not the local checkout's, so nothing that ran is evidence"
                found.append(Judged(training, SKIPPED, text, self.facts.trainings.get(training.name)))
                continue
            one = judge_training(training, self.facts.trainings.get(training.name), self.wish, self.ended, baseline)
            if one.facts is None:
                one = Judged(training, SKIPPED, f"not run: {self._why_not(found)}")
            found.append(one)
        return found

    def _why_not(self, before: Sequence[Judged]) -> str:
        bad = next((one for one in before if one.status in (FAIL, BLOCKED)), None)
        if bad is not None:
            return f"{bad.training.name} did not pass"
        blocking = next(self._blocking(), None)
        if blocking is not None:
            return f"{blocking.key}: {blocking.text}"
        if self._mark(BRIDGE_CHECKS) == "fail":
            return "focused Bridge checks failed"
        return self._ending()

    def _ending(self) -> str:
        if self.ended.reason:
            return f"the run ended as {self.ended.status}: {self.ended.reason}"
        if self.facts.error is not None:
            return f"line {self.facts.error.line_no}: {self.facts.error.text or self.facts.error.line}"
        return f"the run ended as {self.ended.status}, and its log does not say why"

    def _unfinished(self) -> tuple[str, str]:
        """Nothing failed, and yet the criteria were not met."""
        blocking = next(self._blocking(), None)
        if any(one.status == SKIPPED for one in self.judged) or self.ended.stopped:
            if blocking is not None:
                return BLOCKED, f"{of_preflight(blocking.key, blocking.text).name} ({blocking.key}): {blocking.text}"
            return BLOCKED, self._ending()
        if not self._logged:
            return BLOCKED, f"the log is not whole: {self.ended.log_error or 'there is none'}"
        if not self.imports.shown:
            return BLOCKED, f"{IMPORT} was not shown: {self.imports.text}"
        return FAIL, self._ending()

    def _blocking(self) -> Iterator[Mark]:
        """Checks of the preflight that did not pass and are no deliverable of their own."""
        marks = self.facts.preflight.values()
        yield from (mark for mark in marks if mark.key in OF_PREFLIGHT and mark.status in _FAILED)

    def _mark(self, key: str) -> str:
        return self.facts.preflight[key].status if key in self.facts.preflight else ""

    @property
    def _logged(self) -> bool:
        return bool(self.log) and not self.ended.log_error

    def _checks(self) -> Deliverable:
        mark = self.facts.preflight.get(BRIDGE_CHECKS)
        if mark is None:
            return Deliverable(CHECKS, SKIPPED, f"not run: {self._ending()}")
        text = f"could not be run: {mark.text}" if mark.status == "blocked" else mark.text
        return Deliverable(CHECKS, {"pass": PASS, "fail": FAIL}.get(mark.status, SKIPPED), text)

    def _import(self) -> Deliverable:
        if self.imports.wrong:
            return Deliverable(IMPORT, FAIL, self.imports.text)
        if self.imports.shown:
            return Deliverable(IMPORT, PASS, self.imports.text)
        reached = {DRIVER, WORKER} & set(self.facts.preflight)
        why = self.imports.text if reached else f"not reached: {self._why_not(())}"
        return Deliverable(IMPORT, BLOCKED, why)

    def _variants(self, rest: Sequence[Judged]) -> Deliverable:
        if not rest:
            return Deliverable(VARIANTS, NOT_REQUESTED, "Level 0 only")
        return Deliverable(VARIANTS, *wording.together(rest, self.wish.level))

    def _log(self) -> Deliverable:
        if not self.log:
            return Deliverable(LOG, FAIL, "there is no log")
        error = self.ended.log_error
        return Deliverable(LOG, FAIL if error else PASS, f"{self.log}{f': {error}' if error else ''}")
