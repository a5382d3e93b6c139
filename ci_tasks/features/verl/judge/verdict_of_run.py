"""The trainings of a run, its preflight and its end, judged together: the guide's summary.

the first that holds                                         result
focused Bridge checks failed                                 Fail
megatron.bridge is not the local checkout's                  Blocked  (nothing that follows is evidence)
a criterion of a training is contradicted                    Fail
one is, and the environment or the command is the reason     Blocked
a criterion of a training was not seen                       Not proven
a training was not run, but of a run that passed             Blocked
the imports, the whole log or a pass of the focused checks   Not proven
were not seen, or the run failed for what no criterion sees
none of these                                                Pass
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ci_tasks.features.verl.judge import summary_text
from ci_tasks.features.verl.judge.bridge_imports import BridgeImports, check_imports
from ci_tasks.features.verl.judge.failure_stages import (
    PREFLIGHT_STAGES,
    FailureStage,
    is_own_import,
    locate_failure,
    stage_of_check,
    stage_of_reason,
)
from ci_tasks.features.verl.judge.log_records import BRIDGE_CHECKS, DRIVER, WORKER, PreflightCheck
from ci_tasks.features.verl.judge.verdict_of_training import LevelRun, TrainingVerdict, judge_training
from ci_tasks.features.verl.levels.summary import (
    BACKEND,
    BLOCKED,
    CHECKS,
    FAIL,
    IMPORT,
    LOG,
    NOT_PROVEN,
    NOT_REQUESTED,
    PASS,
    SKIPPED,
    VARIANTS,
    Deliverable,
    Summary,
    TrainingCriteria,
)
from ci_tasks.records import PASSED

_FAILED = ("fail", "blocked")
_CHECKED = ("pass", "simulated")  # of the focused checks: what a simulated Bridge shows is nothing either way


def judge(run: LevelRun) -> Summary:
    run_verdict = _RunVerdict(run)
    request, facts = run.request, run.facts
    result, why = run_verdict.result()
    return Summary(
        result=result,
        sentence=summary_text.sentence(result, why, request, run_verdict.passed_level, run_verdict.verdicts),
        requested=summary_text.requested(request),
        checkpoint=summary_text.checkpoint(request, facts),
        deliverables=run_verdict.deliverables(),
        evidence=summary_text.evidence(run.provenance, facts, run_verdict.verdicts),
        limitations=summary_text.limitations(request, facts, run_verdict.verdicts),
        follow_ups=summary_text.follow_ups(result, run_verdict.stages(), run_verdict.verdicts, facts),
        passed_level=run_verdict.passed_level,
        preflight=tuple(Deliverable(mark.key, mark.status, mark.text) for mark in facts.preflight.values()),
        curve=summary_text.curve(run_verdict.verdicts),
        criteria=tuple(
            TrainingCriteria(verdict.training.name, verdict.status, verdict.criteria)
            for verdict in run_verdict.verdicts
            if verdict.criteria
        ),
    )


class _RunVerdict:
    def __init__(self, run: LevelRun) -> None:
        self.request, self.facts, self.ended, self.log = run.request, run.facts, run.ended, run.provenance.log
        self.check_imports: BridgeImports = check_imports(run.facts, run.provenance.bridge_root, run.evidence)
        self.verdicts = self._verdicts(run)

    @property
    def passed_level(self) -> int | None:
        """The highest level whose criteria were met, with those of the levels below it that it needs."""
        if not self.check_imports.shown or self._mark(BRIDGE_CHECKS) not in _CHECKED or not self._logged:
            return None
        reached = None
        for level in sorted({verdict.training.level for verdict in self.verdicts}):
            if any(verdict.status != PASS for verdict in self.verdicts if verdict.training.level == level):
                break
            reached = level
        return reached

    def result(self) -> tuple[str, str]:
        """The result and why; the table in the module's docstring."""
        if self._mark(BRIDGE_CHECKS) == "fail":
            return FAIL, f"focused Bridge checks failed: {self.facts.preflight[BRIDGE_CHECKS].text}"
        if self.check_imports.wrong:
            return (
                FAIL if is_own_import(self.check_imports.wrong) else BLOCKED
            ), f"{IMPORT}: {self.check_imports.wrong}"
        for status in (FAIL, BLOCKED, NOT_PROVEN):
            for verdict in self.verdicts:
                if verdict.status == status:
                    return status, f"{verdict.training.name}: {verdict.text}"
        if self.passed_level == self.request.level and not self.ended.stopped and self.ended.status != "failed":
            return PASS, ""
        return self._unfinished()

    def deliverables(self) -> tuple[Deliverable, ...]:
        smoke = [verdict for verdict in self.verdicts if verdict.training.level == 0]
        rest = [verdict for verdict in self.verdicts if verdict.training.level > 0]
        return (
            self._checks(),
            self._import(),
            Deliverable(BACKEND, *summary_text.combine(smoke, 0)),
            self._variants(rest),
            self._log(),
        )

    def stages(self) -> Iterator[FailureStage]:
        """Where something failed, for what to do next."""
        if self.check_imports.wrong:
            yield stage_of_check(WORKER, self.check_imports.wrong)
            return
        if not any(verdict.facts for verdict in self.verdicts):
            yield from (stage_of_check(mark.key, mark.text) for mark in self._blocking())
            if self.ended.stopped and not list(self._blocking()):
                yield stage_of_reason(self.ended.reason)
            elif not list(self._blocking()) and self.facts.error is not None:
                yield locate_failure(self.facts.error, False).stage

    def _verdicts(self, run: LevelRun) -> list[TrainingVerdict]:
        verdicts: list[TrainingVerdict] = []
        for training in run.trainings:
            if self.check_imports.wrong:
                text = "stopped: megatron.bridge is not the local checkout's, so nothing that ran is evidence"
                verdicts.append(TrainingVerdict(training, SKIPPED, text, self.facts.trainings.get(training.name)))
                continue
            verdict = judge_training(training, self.facts.trainings.get(training.name), run)
            if verdict.facts is None:
                verdict = TrainingVerdict(training, SKIPPED, f"not run: {self._why_not(verdicts)}")
            verdicts.append(verdict)
        return verdicts

    def _why_not(self, before: Sequence[TrainingVerdict]) -> str:
        bad = next((verdict for verdict in before if verdict.status in (FAIL, BLOCKED, NOT_PROVEN)), None)
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
        if any(verdict.status == SKIPPED for verdict in self.verdicts) or self.ended.stopped:
            if self.ended.status == PASSED and blocking is None:
                return NOT_PROVEN, f"the run passed, but its log does not have all trainings: {self._ending()}"
            if blocking is not None:
                return BLOCKED, f"{stage_of_check(blocking.key, blocking.text).name} ({blocking.key}): {blocking.text}"
            return BLOCKED, self._ending()
        if not self._logged:
            return NOT_PROVEN, f"the log is not whole: {self.ended.log_error or 'there is none'}"
        if not self.check_imports.shown:
            return NOT_PROVEN, f"{IMPORT} was not shown: {self.check_imports.text}"
        if self._mark(BRIDGE_CHECKS) not in _CHECKED:
            return NOT_PROVEN, f"all trainings passed, but no pass of the focused Bridge checks: {self._checks().text}"
        return NOT_PROVEN, self._ending()

    def _blocking(self) -> Iterator[PreflightCheck]:
        """Checks of the preflight that did not pass and are no deliverable of their own."""
        marks = self.facts.preflight.values()
        yield from (mark for mark in marks if mark.key in PREFLIGHT_STAGES and mark.status in _FAILED)

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
        if self.check_imports.wrong:
            return Deliverable(IMPORT, FAIL, self.check_imports.text)
        if self.check_imports.shown:
            return Deliverable(IMPORT, PASS, self.check_imports.text)
        reached = {DRIVER, WORKER} & set(self.facts.preflight)
        why = self.check_imports.text if reached else f"not reached: {self._why_not(())}"
        return Deliverable(IMPORT, NOT_PROVEN if reached else BLOCKED, why)

    def _variants(self, rest: Sequence[TrainingVerdict]) -> Deliverable:
        if not rest:
            return Deliverable(VARIANTS, NOT_REQUESTED, "Level 0 only")
        return Deliverable(VARIANTS, *summary_text.combine(rest, self.request.level))

    def _log(self) -> Deliverable:
        if not self.log:
            return Deliverable(LOG, FAIL, "there is no log")
        error = self.ended.log_error
        return Deliverable(LOG, FAIL if error else PASS, f"{self.log}{f': {error}' if error else ''}")
