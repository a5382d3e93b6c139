"""A finished run against its criteria: the status of each training, and the result of all. Pure.

a training   Fail if a criterion is contradicted, Blocked if the environment is the reason for that, Not proven if one
             was not seen, else Pass

the first that holds                                         result
focused Bridge checks failed                                 Fail
megatron.bridge is not the local checkout's                  Blocked  (nothing that follows is evidence)
a criterion of a training is contradicted                    Fail
one is, and the environment or the command is the reason     Blocked
a criterion of a training was not seen                       Not proven
a training was not run, but of a run that passed             Blocked
the imports or a pass of the focused checks were not seen,   Not proven
or the run failed for what no criterion sees
none of these                                                Pass
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ci_tasks.agent.probe.evidence import RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import some
from ci_tasks.features.verl.judge import checkpoints, learning, records
from ci_tasks.features.verl.judge.attribution import OWN_IMPORT, WRONG_PATH, attribute, stage_of, stage_of_check
from ci_tasks.features.verl.judge.criteria import EXIT, FEATURE, STEPS, criteria_of, import_criteria
from ci_tasks.features.verl.judge.records import BLOCKED, FAIL, NOT_PROVEN, PASS, SKIPPED, Criterion, Deliverable
from ci_tasks.features.verl.judge.settings import unlike
from ci_tasks.features.verl.judge.training_log import BRIDGE_CHECKS, DRIVER, LEVEL_0, WORKER, RunFacts, TrainingFacts
from ci_tasks.features.verl.judge.training_run import TrainingRun, evidence_of, noted_failures
from ci_tasks.features.verl.levels.levels import LevelRequest, Training
from ci_tasks.records import PASSED

IMPORT = "Local Bridge import in verl"
_OF_A_PASS = (STEPS, EXIT, checkpoints.RESUME, checkpoints.SAME, FEATURE, learning.TREND)  # what a line has room for
_PATH = re.compile(r"/\S*/megatron/bridge/__init__\.py\S*|/\S*(?:site|dist)-packages/\S*")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")


@dataclass(frozen=True)
class LevelRun:
    """A finished run of the levels. `trainings` are those of the request, in order; `status` and `reason` are the run's
    own; `root` is the Bridge checkout as the job sees it, "" if it is not known; `evidence` is what the probe saw,
    `baseline` a training to compare level 5's with. `bridge` and `verl` are the trees in the summary's words; `command`
    repeats the run when it is pasted; `log` is its path, "" if there is none; `simulated`: the host only simulates
    GPUs; `remarks` are limitations that were known before."""

    request: LevelRequest
    trainings: Sequence[Training]
    facts: RunFacts
    status: str
    reason: str = ""
    root: str = ""
    evidence: RunEvidence | None = None
    baseline: TrainingFacts | None = None
    bridge: str = "not known: only a log was judged"
    verl: str = "not known: only a log was judged"
    command: str = ""
    log: str = ""
    image: str = ""
    host: str = ""
    simulated: bool = False
    remarks: Sequence[str] = ()

    @property
    def stopped(self) -> bool:
        """Whether something other than the job ended it, or kept it from running."""
        return self.status in ("blocked", "lost", "cancelled")

    @property
    def ending(self) -> str:
        error = self.facts.error
        if error and not self.reason:
            return f"{error.place}: {error.text}"
        return f"the run ended as {self.status}: {self.reason or 'its log does not say why'}"

    @property
    def checks(self) -> Deliverable | None:
        """The preflight's mark of the focused checks."""
        return self.facts.preflight.get(BRIDGE_CHECKS)

    @property
    def checked(self) -> bool:
        """Whether the focused checks passed. What a simulated Bridge shows is nothing either way."""
        return self.checks is not None and self.checks.status in ("pass", "cited", "simulated")

    def blocking(self) -> list[Deliverable]:
        """Marks of the preflight without which no training begins, and that are no deliverable of their own."""
        failed = (mark for mark in self.facts.preflight.values() if mark.status in ("fail", "blocked"))
        return [mark for mark in failed if mark.name not in (BRIDGE_CHECKS, LEVEL_0)]

    def why_nothing_ran(self) -> str:
        for mark in self.blocking():
            return f"{mark.name}: {mark.text}"
        failed = self.checks is not None and self.checks.status == "fail"
        return "focused Bridge checks failed" if failed else self.ending


@dataclass(frozen=True)
class RunVerdict:
    """`why` is "" for a Pass. `imports` says whether verl used the Bridge under test; `trainings` has one verdict for
    each training that was planned."""

    result: str
    why: str
    imports: Criterion
    trainings: tuple[records.TrainingVerdict, ...]


def judge_run(run: LevelRun) -> RunVerdict:
    imports, began = bridge_import(run), {one.training.name: one for one in _runs(run)}
    verdicts: list[records.TrainingVerdict] = []
    for name in (training.name for training in run.trainings):
        bad = next((one for one in verdicts if one.status != PASS), None)
        if imports.outcome == records.CONTRADICTED:
            text = "stopped: megatron.bridge is not the local checkout's, so nothing that ran is evidence"
            verdicts.append(records.TrainingVerdict(name, SKIPPED, text))
        elif name in began:
            verdicts.append(_judged(began[name], run))
        else:
            why = f"{bad.training} did not pass" if bad and bad.status != SKIPPED else run.why_nothing_ran()
            verdicts.append(records.TrainingVerdict(name, SKIPPED, f"not run: {why}"))
    return RunVerdict(*_result(run, imports, verdicts), imports, tuple(verdicts))


def _result(run: LevelRun, imports: Criterion, verdicts: Sequence[records.TrainingVerdict]) -> tuple[str, str]:
    """The result and why: the table in the module's docstring."""
    if run.checks is not None and run.checks.status == "fail":
        return FAIL, f"focused Bridge checks failed: {run.checks.text}"
    if imports.outcome == records.CONTRADICTED:
        return BLOCKED if imports.environment else FAIL, str(imports)
    for status in (FAIL, BLOCKED, NOT_PROVEN):
        for one in verdicts:
            if one.status == status:
                return status, f"{one.training}: {one.text}"
    if any(one.status == SKIPPED for one in verdicts) or run.stopped:
        for mark in run.blocking():
            return BLOCKED, f"{mark.name}: {mark.text}"
        if run.status == PASSED:
            return NOT_PROVEN, "the run passed, but its log does not have all trainings"
        return BLOCKED, run.ending
    if imports.outcome != records.SHOWN:
        return NOT_PROVEN, f"{IMPORT} was not shown: {imports.evidence}"
    if not run.checked:
        return NOT_PROVEN, "all trainings passed, but no pass of the focused Bridge checks"
    return (NOT_PROVEN, run.ending) if run.status == "failed" else (PASS, "")


# -- one training ------------------------------------------------------------------------------------------------------


def _runs(run: LevelRun) -> Iterator[TrainingRun]:
    """Those that began, with what was noted of them."""
    before: TrainingRun | None = None
    for training in run.trainings:
        if facts := run.facts.trainings.get(training.name):
            plain = run.facts.trainings.get("level 0", TrainingFacts("")).proofs
            evidence = evidence_of(run.evidence, facts)
            facts = replace(facts, failures=(*facts.failures, *noted_failures(evidence)))
            before = TrainingRun(training, facts, run.request, run.root, evidence, before, plain)
            yield before


def _judged(training: TrainingRun, run: LevelRun) -> records.TrainingVerdict:
    if training.facts.exit_code is None and run.stopped:
        follow_up = stage_of(run.reason).follow_up
        criteria = [records.contradicted(EXIT, run.ending, follow_up=follow_up, environment=True)]
    else:
        criteria = [*criteria_of(training)]
        if training.training.level == 5 and training.facts.ended_well:
            criteria += _learning(training, run.baseline)
    status = status_of(criteria)
    return records.TrainingVerdict(training.training.name, status, _text(status, criteria), tuple(criteria))


def _learning(run: TrainingRun, base: TrainingFacts | None) -> Iterator[Criterion]:
    curve = base.metrics if base else None
    found = learning.learning(run.facts.metrics, run.training.steps, critic=run.has_critic, baseline=curve)
    why = "its resolved settings were not seen"
    if base is not None and base.settings:
        why = some(unlike(run.facts.settings, base.settings), 3, "; ")
    for one in found:
        if base is not None and why and one.name == learning.TREND:
            todo = "name the log of an equal training"
            one = records.not_seen(learning.TREND, f"another training is no baseline: {why}", "", todo)
        yield one


def status_of(criteria: Sequence[Criterion]) -> str:
    if wrong := records.with_outcome(criteria, records.CONTRADICTED):
        return BLOCKED if all(one.environment for one in wrong) else FAIL
    unseen = [one for one in records.with_outcome(criteria, records.NOT_SEEN) if not one.optional]
    return NOT_PROVEN if unseen or not criteria else PASS


def deciding(status: str, criteria: Iterable[Criterion]) -> list[Criterion]:
    """Those that a status rests on. If it ended in a failure, the rest follows from that."""
    if status == PASS:
        return records.with_outcome(criteria, records.SHOWN)
    outcome = records.NOT_SEEN if status == NOT_PROVEN else records.CONTRADICTED
    found = [
        one
        for one in records.with_outcome(criteria, outcome)
        if one.environment == (status == BLOCKED) and not one.optional
    ]
    return [one for one in found if one.name == EXIT] or found


def _text(status: str, criteria: Iterable[Criterion]) -> str:
    found = deciding(status, criteria)
    if status == PASS:
        return "; ".join(one.evidence for name in _OF_A_PASS for one in found if one.name == name)
    text = some([str(one) for one in found], 4, "; ").removeprefix(f"{EXIT}: ")
    return f"not seen: {text}" if status == NOT_PROVEN else text


# -- the import of Bridge ----------------------------------------------------------------------------------------------


def bridge_import(run: LevelRun) -> Criterion:
    """Whether verl used the Bridge checkout under test, in the driver and in a Ray worker: by the preflight's marks, by
    paths in the log, and by what the trainings' processes imported."""
    source = f"{run.root.rstrip('/')}/src" if run.root else "the Bridge checkout's src"
    # A path that is read from a text begins after its last space.
    sources = (f"{source}/", "/" + f"{source}/".rpartition(" ")[2].partition("/")[2])

    def elsewhere(path: str) -> bool:
        return bool(_INSTALLED.search(path)) or bool(run.root and not f"{path}/".startswith(sources))

    right: list[str] = []
    wrong: list[str] = []
    unseen: list[str] = []
    own = False
    for key, who in ((DRIVER, "driver"), (WORKER, "Ray worker")):
        mark = run.facts.preflight.get(key, Deliverable(key, "", "not checked"))
        path = _PATH.search(mark.text)
        if mark.status == "pass":
            is_wrong = bool(path and elsewhere(path[0]))
        else:
            broken = mark.status in ("fail", "blocked") and stage_of_check(key, mark.text) is OWN_IMPORT
            own, is_wrong = own or broken, broken or mark.status == "fail"
        (wrong if is_wrong else right if mark.status == "pass" else unseen).append(f"{who}: {mark.text}")
    for training in run.facts.trainings.values():
        said = [(line.place, path) for path, line in training.bridge_paths.items() if elsewhere(path)]
        if training.error and attribute(training.error, True, run.root).stage is WRONG_PATH:
            said.append((training.error.place, training.error.text))
        seen = records.with_outcome(
            import_criteria(evidence_of(run.evidence, training), run.root), records.CONTRADICTED
        )
        said += [(one.place or one.name, one.evidence) for one in seen]
        wrong += [f"{place} of {training.name}: {what}" for place, what in said]
    text = "; ".join(dict.fromkeys([*wrong, *right, *unseen]))
    if wrong:
        text = f"not under {source}: {text}" if not own else text
        return records.contradicted(IMPORT, text, "", (OWN_IMPORT if own else WRONG_PATH).follow_up, not own)
    return records.not_seen(IMPORT, text) if unseen else records.shown(IMPORT, text)
