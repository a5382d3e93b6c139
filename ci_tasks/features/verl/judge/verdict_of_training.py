"""One training against its criteria: Pass where all are shown, Fail where one is contradicted, Blocked where the
environment is the reason for that, Not proven otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from ci_tasks.agent.probe.evidence import RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import some
from ci_tasks.features.verl.judge import learning_signal
from ci_tasks.features.verl.judge.checkpoint_criteria import SAME
from ci_tasks.features.verl.judge.failure_stages import stage_of_reason
from ci_tasks.features.verl.judge.hooked_training import hooked_training, with_hooks
from ci_tasks.features.verl.judge.learning_signal import TREND
from ci_tasks.features.verl.judge.log_records import Metrics, QuotedLine, RunFacts, TrainingFacts
from ci_tasks.features.verl.judge.process_evidence import evidence_of, import_criteria, noted_failures
from ci_tasks.features.verl.judge.training_criteria import EXIT, FEATURE, RESUME, STEPS, criteria_of
from ci_tasks.features.verl.judge.training_run import TrainingRun, has_critic
from ci_tasks.features.verl.levels.criterion import (
    CONTRADICTED,
    NOT_SEEN,
    SHOWN,
    Criterion,
    contradicted,
    with_outcome,
)
from ci_tasks.features.verl.levels.levels import LevelRequest, Training
from ci_tasks.features.verl.levels.summary import BLOCKED, FAIL, NOT_PROVEN, PASS, SKIPPED, Provenance

LEARNING_LEVEL = 5
_STOPPED = ("blocked", "lost", "cancelled")
_OF_A_PASS = (STEPS, EXIT, RESUME, SAME, FEATURE, TREND)  # what a line has room for; the rest is in the table
_MOST_NAMED = 4


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


@dataclass(frozen=True)
class LevelRun:
    """A finished run of the levels. `trainings` are those of the request, in order; `baseline` are metrics to compare
    level 5's with, `evidence` is what the probe saw, `scripts` are the texts of the trainings' wrappers, by path."""

    request: LevelRequest
    trainings: Sequence[Training]
    facts: RunFacts
    ended: RunEnd
    provenance: Provenance
    baseline: Metrics | None = None
    evidence: RunEvidence | None = None
    scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def plain(self) -> Mapping[str, QuotedLine]:
        """The proofs that level 0, where the feature is not active, has as well."""
        smoke = self.facts.trainings.get(self.trainings[0].name)
        return smoke.proofs if smoke else {}


@dataclass(frozen=True)
class TrainingVerdict:
    """`status` is Pass, Fail, Blocked, Not proven or Skipped; `text` the evidence or what was missed."""

    training: Training
    status: str
    text: str
    facts: TrainingFacts | None = None
    criteria: tuple[Criterion, ...] = ()

    @property
    def follow_ups(self) -> list[str]:
        return [criterion.follow_up for criterion in _deciding(self.status, self.criteria) if criterion.follow_up]


def judge_training(training: Training, facts: TrainingFacts | None, run: LevelRun) -> TrainingVerdict:
    """The status of one training. One that did not begin is Skipped, for a reason that the caller knows better."""
    if facts is None:
        return TrainingVerdict(training, SKIPPED, "it did not begin")
    facts = with_hooks(facts, evidence_of(run.evidence, facts))
    if facts.exit_code is None and run.ended.stopped:
        criteria: tuple[Criterion, ...] = (_stopped(run.ended),)
    else:
        criteria = _criteria(training, facts, run)
    status = status_of(criteria)
    return TrainingVerdict(training, status, _text(status, criteria), facts, criteria)


def status_of(criteria: Iterable[Criterion]) -> str:
    """The table of this module's docstring."""
    criteria = tuple(criteria)
    wrong = with_outcome(criteria, CONTRADICTED)
    if any(not criterion.environment for criterion in wrong):
        return FAIL
    if wrong:
        return BLOCKED
    unseen = [criterion for criterion in with_outcome(criteria, NOT_SEEN) if not criterion.optional]
    return NOT_PROVEN if unseen or not criteria else PASS


def _criteria(training: Training, facts: TrainingFacts, run: LevelRun) -> tuple[Criterion, ...]:
    evidence = evidence_of(run.evidence, facts)
    resumed = run.facts.trainings.get(training.same_as)
    context = TrainingRun(
        training,
        facts,
        run.request,
        script=run.scripts.get(training.script, ""),
        plain=run.plain,
        failures=(*facts.failures, *noted_failures(evidence)),
        imports=tuple(import_criteria(evidence, run.provenance.bridge_root)),
        hooked=hooked_training(evidence),
        resumed=with_hooks(resumed, evidence_of(run.evidence, resumed)) if resumed else None,
    )
    found = criteria_of(context)
    if training.level != LEARNING_LEVEL or not context.ended_well:
        return found
    warmup = facts.settings.get("trainer.critic_warmup")
    learned = learning_signal.learning(
        facts.metrics,
        steps=training.steps,
        warmup=warmup if isinstance(warmup, int) else 0,
        critic=has_critic(facts.settings),
        baseline=run.baseline,
    )
    return (*found, *learned)


def _stopped(ended: RunEnd) -> Criterion:
    stage = stage_of_reason(ended.reason)
    return contradicted(EXIT, f"{ended.status}: {ended.reason}", follow_up=stage.follow_up, environment=True)


def _deciding(status: str, criteria: Iterable[Criterion]) -> list[Criterion]:
    """Those that a status rests on. Where it ended in a failure the rest follows from that."""
    if status == PASS:
        return with_outcome(criteria, SHOWN)
    outcome = NOT_SEEN if status == NOT_PROVEN else CONTRADICTED
    deciding = [
        found
        for found in with_outcome(criteria, outcome)
        if found.environment == (status == BLOCKED) and not found.optional
    ]
    return [found for found in deciding if found.name == EXIT] or deciding


def _text(status: str, criteria: Iterable[Criterion]) -> str:
    deciding = _deciding(status, criteria)
    if status == PASS:
        return "; ".join(found.evidence for name in _OF_A_PASS for found in deciding if found.name == name)
    if [found.name for found in deciding] == [EXIT]:
        return f"{deciding[0].evidence}{f' ({deciding[0].place})' if deciding[0].place else ''}"
    text = some([str(found) for found in deciding], _MOST_NAMED, "; ")
    return f"not seen: {text}" if status == NOT_PROVEN else text
