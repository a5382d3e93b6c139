"""A finished run against its criteria: the status of each training, and the guide's summary of all.

a training   Fail where a criterion is contradicted, Blocked where the environment is the reason for that, Not proven
             where one was not seen, else Pass

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

import re
from collections.abc import Iterable, Iterator, Sequence

from ci_tasks.agent.probe.evidence import RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import some
from ci_tasks.features.verl.judge import learning
from ci_tasks.features.verl.judge.attribution import (
    OWN_IMPORT,
    WRONG_PATH,
    attribute,
    stage_of_check,
    stage_of_reason,
)
from ci_tasks.features.verl.judge.checkpoints import RESUME, SAME
from ci_tasks.features.verl.judge.criteria import (
    EXIT,
    FEATURE,
    STEPS,
    criteria_of,
    import_criteria,
)
from ci_tasks.features.verl.judge.noted import evidence_of, with_hooks
from ci_tasks.features.verl.judge.training_log import (
    BRIDGE_CHECKS,
    DRIVER,
    LEVEL_0,
    WORKER,
    PreflightCheck,
    RunFacts,
    TrainingFacts,
)
from ci_tasks.features.verl.judge.training_run import TrainingRun, has_critic
from ci_tasks.features.verl.levels.levels import LevelRequest, Training
from ci_tasks.features.verl.levels.summary import (
    BLOCKED,
    CONTRADICTED,
    FAIL,
    IMPORT,
    NOT_PROVEN,
    NOT_SEEN,
    PASS,
    SHOWN,
    SKIPPED,
    Criterion,
    contradicted,
    not_seen,
    with_outcome,
)
from ci_tasks.features.verl.settings import unlike
from ci_tasks.records import PASSED

_OF_A_PASS = (STEPS, EXIT, RESUME, SAME, FEATURE, learning.TREND)  # what a line has room for
_STOPPED = ("blocked", "lost", "cancelled")
_PATH = re.compile(r"/\S*/megatron/bridge/__init__\.py\S*|/\S*(?:site|dist)-packages/\S*")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
_WHO = {DRIVER: "driver", WORKER: "Ray worker"}
_NO_TRAINING = ("fail", "blocked")


@dataclass(frozen=True)
class RunEnd:
    """How the run ended, from its own record: its status and the reason for it; `log_error` says why the log is not
    whole, "" where it is."""

    status: str
    reason: str = ""
    log_error: str = ""

    @property
    def stopped(self) -> bool:
        """Whether something other than the job ended it, or kept it from running."""
        return self.status in _STOPPED

    def __str__(self) -> str:
        return f"the run ended as {self.status}: {self.reason or 'its log does not say why'}"


@dataclass(frozen=True)
class Provenance:
    """What the log does not know of its run. `bridge` and `verl` are the trees in the summary's words; `root` is the
    Bridge checkout as the job sees it, "" where it is not known; `command` repeats the run when it is pasted; `log` is
    where the log lies, "" where there is none. `simulated` names a host that only simulates GPUs."""

    bridge: str
    verl: str
    command: str
    log: str
    image: str = ""
    host: str = ""
    root: str = ""
    simulated: str = ""


@dataclass(frozen=True)
class LevelRun:
    """A finished run of the levels. `trainings` are those of the request, in order; `baseline` is a training to compare
    level 5's with, `evidence` what the probe saw; `remarks` are limitations that
    were known before."""

    request: LevelRequest
    trainings: Sequence[Training]
    facts: RunFacts
    ended: RunEnd
    provenance: Provenance
    baseline: TrainingFacts | None = None
    evidence: RunEvidence | None = None
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class TrainingVerdict:
    """`status` is Pass, Fail, Blocked, Not proven or Skipped; `text` the evidence or what was missed."""

    training: Training
    status: str
    text: str
    facts: TrainingFacts | None = None
    criteria: tuple[Criterion, ...] = ()


def status_of(criteria: Iterable[Criterion]) -> str:
    criteria = tuple(criteria)
    wrong = with_outcome(criteria, CONTRADICTED)
    if wrong:
        return BLOCKED if all(one.environment for one in wrong) else FAIL
    unseen = [one for one in with_outcome(criteria, NOT_SEEN) if not one.optional]
    return NOT_PROVEN if unseen or not criteria else PASS


def judge_training(training: Training, run: LevelRun) -> TrainingVerdict:
    """The status of one training. One that did not begin is Skipped, for a reason that the caller knows better."""
    noted = {name: with_hooks(one, evidence_of(run.evidence, one)) for name, one in run.facts.trainings.items()}
    facts = noted.get(training.name)
    if facts is None:
        return TrainingVerdict(training, SKIPPED, "it did not begin")
    criteria: tuple[Criterion, ...]
    if facts.exit_code is None and run.ended.stopped:
        follow_up = stage_of_reason(run.ended.reason).follow_up
        criteria = (contradicted(EXIT, str(run.ended), follow_up=follow_up, environment=True),)
    else:
        at = run.trainings.index(training)
        before = noted.get(run.trainings[at - 1].name) if training.resumes and at else None
        root, plain = run.provenance.root, run.facts.trainings.get(run.trainings[0].name)
        context = TrainingRun(
            training,
            facts,
            run.request,
            root,
            evidence_of(run.evidence, facts),
            TrainingRun(run.trainings[at - 1], before, run.request, root, evidence_of(run.evidence, before)).written()
            if before
            else (),
            plain.proofs if plain and run.trainings[0].level == 0 else {},
            noted.get(training.same_as),
        )
        criteria = (*criteria_of(context), *(_learning(training, facts, run) if facts.ended_well else ()))
    status = status_of(criteria)
    return TrainingVerdict(training, status, _text(status, criteria), facts, criteria)


def _learning(training: Training, facts: TrainingFacts, run: LevelRun) -> Iterator[Criterion]:
    if training.level != 5:
        return
    warmup, base = facts.settings.get("trainer.critic_warmup"), run.baseline
    found = learning.learning(
        facts.metrics,
        steps=training.steps,
        warmup=warmup if isinstance(warmup, int) else 0,
        critic=has_critic(facts.settings),
        baseline=base.metrics if base else None,
    )
    differ = unlike(facts.settings.values, base.settings.values) if base and base.settings else []
    if base is not None and (differ or not base.settings):
        why = some(differ, 3, "; ") or "its resolved settings were not seen"
        yield not_seen(learning.TREND, f"another training is no baseline: {why}", "name the log of an equal training")
        found = tuple(one for one in found if one.name != learning.TREND)
    yield from found


def deciding(status: str, criteria: Iterable[Criterion]) -> list[Criterion]:
    """Those that a status rests on. Where it ended in a failure the rest follows from that."""
    if status == PASS:
        return with_outcome(criteria, SHOWN)
    outcome = NOT_SEEN if status == NOT_PROVEN else CONTRADICTED
    found = [
        one for one in with_outcome(criteria, outcome) if one.environment == (status == BLOCKED) and not one.optional
    ]
    return [one for one in found if one.name == EXIT] or found


def _text(status: str, criteria: Iterable[Criterion]) -> str:
    found = deciding(status, criteria)
    if status == PASS:
        return "; ".join(one.evidence for name in _OF_A_PASS for one in found if one.name == name)
    if [one.name for one in found] == [EXIT]:
        return f"{found[0].evidence}{f' ({found[0].place})' if found[0].place else ''}"
    text = some([str(one) for one in found], 4, "; ")
    return f"not seen: {text}" if status == NOT_PROVEN else text


def bridge_import(facts: RunFacts, root: str, evidence: RunEvidence | None) -> Criterion:
    """Whether verl used the Bridge checkout under test, in the driver and in a Ray worker: by the preflight's marks, by
    paths in the log, and by what the trainings' processes imported."""
    source = f"{root.rstrip('/')}/src"
    where = source if root else "the Bridge checkout's src"

    # A path that is read from a text begins after its last space.
    sources = (f"{source}/", "/" + f"{source}/".rpartition(" ")[2].partition("/")[2])

    def elsewhere(path: str) -> bool:
        return bool(_INSTALLED.search(path)) or bool(root and not f"{path}/".startswith(sources))

    right, wrong, unseen, own = [], [], [], False
    for key, who in _WHO.items():
        mark = facts.preflight.get(key)
        path = _PATH.search(mark.text) if mark else None
        if mark is not None and mark.status in _NO_TRAINING and stage_of_check(key, mark.text) is OWN_IMPORT:
            wrong.append(f"{who}: {mark.text}")
            own = True
        elif mark is not None and mark.status == "fail":
            wrong.append(f"{who}: {mark.text}")
        elif mark is not None and mark.status == "pass" and path and elsewhere(path[0]):
            wrong.append(f"{who}: {path[0]} is not under {where}")
        elif mark is not None and mark.status == "pass":
            right.append(f"{who}: {mark.text}")
        else:
            unseen.append(f"{who} not checked{f': {mark.text}' if mark else ''}")
    for training in facts.trainings.values():
        for directory, line in training.bridge_paths.items():
            if elsewhere(directory):
                wrong.append(f"{line.place} of {training.name}: {directory}/megatron/bridge is not under {where}")
        error = training.error
        if error is not None and attribute(error, True, root).stage is WRONG_PATH:
            wrong.append(f"{error.place} of {training.name}: {error.text}")
        seen = import_criteria(evidence_of(evidence, training), root)
        wrong += [
            f"{one.place or one.name} of {training.name}: {one.evidence}" for one in with_outcome(seen, CONTRADICTED)
        ]
    text = "; ".join(dict.fromkeys([*wrong, *right, *unseen]))
    if wrong:
        stage = OWN_IMPORT if own else WRONG_PATH
        return contradicted(IMPORT, text, "", stage.follow_up, environment=not own)
    return not_seen(IMPORT, text) if unseen else Criterion(IMPORT, SHOWN, text)


class RunVerdict:
    """`verdicts` has one for each training that was planned; `imports` says whether verl used the Bridge under test;
    `checks` is the preflight's mark of the focused checks, None where there is none."""

    def __init__(self, run: LevelRun) -> None:
        self.run, self.request, self.facts, self.ended = run, run.request, run.facts, run.ended
        self.marks, self.log = run.facts.preflight, run.provenance.log
        self.checks = self.marks.get(BRIDGE_CHECKS)
        self.imports = bridge_import(run.facts, run.provenance.root, run.evidence)
        self.verdicts: list[TrainingVerdict] = []
        for training in run.trainings:
            self.verdicts.append(self._verdict(training))

    @property
    def passed_level(self) -> int | None:
        """The highest level whose criteria were met, with those of the levels below it that it needs."""
        if self.imports.outcome != SHOWN or not self.checked or not self.logged:
            return None
        reached = None
        for level in sorted({one.training.level for one in self.verdicts}):
            if any(one.status != PASS for one in self.verdicts if one.training.level == level):
                break
            reached = level
        return reached

    @property
    def checked(self) -> bool:
        """Whether the focused checks passed. What a simulated Bridge shows is nothing either way."""
        return self.checks is not None and self.checks.status in ("pass", "cited", "simulated")

    @property
    def logged(self) -> bool:
        return bool(self.log) and not self.ended.log_error

    def _verdict(self, training: Training) -> TrainingVerdict:
        if self.imports.outcome == CONTRADICTED:
            text = "stopped: megatron.bridge is not the local checkout's, so nothing that ran is evidence"
            return TrainingVerdict(training, SKIPPED, text, self.facts.trainings.get(training.name))
        verdict = judge_training(training, self.run)
        if verdict.facts is not None:
            return verdict
        bad = next((one for one in self.verdicts if one.status != PASS), None)
        why = f"{bad.training.name} did not pass" if bad and bad.facts else self.why_nothing_ran()
        return TrainingVerdict(training, SKIPPED, f"not run: {why}")

    def why_nothing_ran(self) -> str:
        for mark in self.blocking():
            return f"{mark.key}: {mark.text}"
        if self.checks is not None and self.checks.status == "fail":
            return "focused Bridge checks failed"
        return self.ending()

    def ending(self) -> str:
        error = self.facts.error
        return f"{error.place}: {error.text}" if error and not self.ended.reason else str(self.ended)

    def blocking(self) -> list[PreflightCheck]:
        """Marks of the preflight without which no training begins, and that are no deliverable of their own."""
        own = (BRIDGE_CHECKS, LEVEL_0)
        return [mark for mark in self.marks.values() if mark.status in _NO_TRAINING and mark.key not in own]

    def result(self) -> tuple[str, str]:
        """The result and why: the table in the module's docstring."""
        if self.checks is not None and self.checks.status == "fail":
            return FAIL, f"focused Bridge checks failed: {self.checks.text}"
        if self.imports.outcome == CONTRADICTED:
            return BLOCKED if self.imports.environment else FAIL, str(self.imports)
        for status in (FAIL, BLOCKED, NOT_PROVEN):
            for one in self.verdicts:
                if one.status == status:
                    return status, f"{one.training.name}: {one.text}"
        if self.passed_level == self.request.level and not self.ended.stopped and self.ended.status != "failed":
            return PASS, ""
        return self._unfinished()

    def _unfinished(self) -> tuple[str, str]:
        """Nothing failed, and yet the criteria were not met."""
        blocking = self.blocking()
        if any(one.status == SKIPPED for one in self.verdicts) or self.ended.stopped:
            if self.ended.status == PASSED and not blocking:
                return NOT_PROVEN, f"the run passed, but its log does not have all trainings: {self.ending()}"
            for mark in blocking:
                return BLOCKED, f"{stage_of_check(mark.key, mark.text).name} ({mark.key}): {mark.text}"
            return BLOCKED, self.ending()
        if not self.logged:
            return NOT_PROVEN, f"the log is not whole: {self.ended.log_error or 'there is none'}"
        if self.imports.outcome != SHOWN:
            return NOT_PROVEN, f"{IMPORT} was not shown: {self.imports.evidence}"
        if not self.checked:
            return NOT_PROVEN, "all trainings passed, but no pass of the focused Bridge checks"
        return NOT_PROVEN, self.ending()
