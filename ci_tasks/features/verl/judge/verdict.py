"""A finished run against its criteria: the result of all, and the guide's summary in its words, in at most 30 lines.
Pure.

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
from typing import NamedTuple

from ci_tasks.agent.records import Checkout
from ci_tasks.errors import printable, short, some, truncated
from ci_tasks.features.verl.judge import records
from ci_tasks.features.verl.judge.attribution import OWN_IMPORT, WRONG_PATH, attribute, stage_of, stage_of_check
from ci_tasks.features.verl.judge.criteria import EXIT, FEATURE, RESUME, SAME, STEPS, criteria_of, import_criteria
from ci_tasks.features.verl.judge.learning import TREND, learning
from ci_tasks.features.verl.judge.records import (
    BLOCKED,
    CONTRADICTED,
    FAIL,
    NOT_PROVEN,
    NOT_SEEN,
    PASS,
    SHOWN,
    SKIPPED,
    Criterion,
    Deliverable,
    Summary,
    TrainingVerdict,
    with_outcome,
)
from ci_tasks.features.verl.judge.training_log import DRIVER, WORKER, TrainingFacts
from ci_tasks.features.verl.judge.training_run import MISSING, LevelRun, TrainingRun, evidence_of, unlike, value_text
from ci_tasks.features.verl.levels.levels import LEVELS, SETTINGS, limitations
from ci_tasks.records import PASSED

CHECKS, IMPORT, BACKEND = "Bridge-side checks", "Local Bridge import in verl", "verl Megatron backend run"
VARIANTS, LOG = "Requested variants", "Log capture"
_OF_A_PASS = (STEPS, EXIT, RESUME, SAME, FEATURE, TREND)  # what a line has room for
_LONGEST, _LONGEST_LINE = 300, 160  # characters of a reason, and of a line that is quoted
_MOST_LIMITATIONS, _MOST_FOLLOW_UPS, _MOST_DIRTY = 9, 5, 10  # so that the summary has at most 30 lines
# What the key lines name of the resolved settings, by the wrapper's variables.
_NAMED = ("ADV_ESTIMATOR", "ENGINE", "VANILLA_MBRIDGE", "LORA_RANK", "USE_MEGATRON_FSDP", "COMMON_TP", "COMMON_PP")
_PATH = re.compile(r"/\S*/megatron/bridge/__init__\.py\S*|/\S*(?:site|dist)-packages/\S*")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")


class RunVerdict(NamedTuple):
    """`why` is "" for a Pass. `imports` says whether verl used the Bridge under test; `trainings` has one verdict for
    each training that was planned."""

    result: str
    why: str
    imports: Criterion
    trainings: Sequence[TrainingVerdict]


def judge_run(run: LevelRun) -> RunVerdict:
    imports, began = bridge_import(run), {one.training.name: one for one in run.runs()}
    verdicts: list[TrainingVerdict] = []
    for name in (training.name for training in run.trainings):
        bad = next((f"{one.training} did not pass" for one in verdicts if one.status not in (PASS, SKIPPED)), "")
        if imports.outcome == CONTRADICTED:
            what = "is not the local checkout's" if imports.environment else "cannot be imported"
            text = f"stopped: megatron.bridge {what}, so nothing that ran is evidence"
            verdicts.append(TrainingVerdict(name, SKIPPED, text))
        elif name in began:
            verdicts.append(_judged(began[name], run))
        else:
            verdicts.append(TrainingVerdict(name, SKIPPED, f"not run: {bad or run.why_nothing_ran}"))
    return RunVerdict(*_result(run, imports, verdicts), imports, verdicts)


def _result(run: LevelRun, imports: Criterion, verdicts: Sequence[TrainingVerdict]) -> tuple[str, str]:
    """The result and why: the table in the module's docstring."""
    if run.checks.status == "fail":
        return FAIL, f"focused Bridge checks failed: {run.checks.text}"
    if imports.outcome == CONTRADICTED:
        return BLOCKED if imports.environment else FAIL, str(imports)
    for status in (FAIL, BLOCKED, NOT_PROVEN):
        for one in verdicts:
            if one.status == status:
                return status, f"{one.training}: {one.text}"
    if any(one.status == SKIPPED for one in verdicts) or run.stopped:
        if run.status == PASSED and not run.blocking:
            return NOT_PROVEN, "the log does not have all trainings of the level"
        return BLOCKED, next((f"{mark.name}: {mark.text}" for mark in run.blocking), run.ending)
    if imports.outcome != SHOWN:
        return NOT_PROVEN, f"{IMPORT} was not shown: {imports.evidence}"
    if not run.checked:
        return NOT_PROVEN, "all trainings passed, but no pass of the focused Bridge checks"
    return (NOT_PROVEN, run.ending) if run.status == "failed" else (PASS, "")


def _judged(training: TrainingRun, run: LevelRun) -> TrainingVerdict:
    """Of a training that began."""
    facts, base = training.facts, run.baseline
    criteria = [*criteria_of(training)]
    if facts.exit_code is None and run.stopped:
        follow_up = stage_of(run.reason).follow_up
        criteria = [Criterion(EXIT, CONTRADICTED, run.ending, follow_up=follow_up, environment=True)]
    elif training.training.level == 5 and facts.ended_well:
        why = some(unlike(facts.settings, base.settings), 3, "; ") if base and base.settings else "settings not seen"
        curve, why = (base.metrics, why) if base else (None, "")
        steps = training.training.steps
        criteria += learning(facts.metrics, steps, critic=training.has_critic, baseline=curve, unlike=why)
    status = _status(criteria)
    found = deciding(status, criteria)
    if status == PASS:
        text = "; ".join(one.evidence for name in _OF_A_PASS for one in found if one.name == name)
    else:
        text = some([str(one) for one in found], 4, "; ").removeprefix(f"{EXIT}: ")
    is_of_verl = run.evidence or run.facts.preflight or facts.settings or facts.bridge_paths
    if status in (FAIL, NOT_PROVEN) and not is_of_verl:
        status, text = NOT_PROVEN, "neither verl's settings nor Megatron-Bridge in the log"
    text = f"not seen: {text}" if status == NOT_PROVEN else text
    return TrainingVerdict(training.training.name, status, text, tuple(criteria))


def _status(criteria: Sequence[Criterion]) -> str:
    wrong = with_outcome(criteria, CONTRADICTED)
    if wrong:
        return BLOCKED if all(one.environment for one in wrong) else FAIL
    return NOT_PROVEN if any(not one.optional for one in with_outcome(criteria, NOT_SEEN)) else PASS


def deciding(status: str, criteria: Iterable[Criterion]) -> list[Criterion]:
    """The criteria that decide a status. If it ended in a failure, the rest follows from that."""
    seen = with_outcome(criteria, {PASS: SHOWN, NOT_PROVEN: NOT_SEEN}.get(status, CONTRADICTED))
    found = [one for one in seen if one.environment == (status == BLOCKED)]
    required = [one for one in found if not one.optional]
    return found if status == PASS else [one for one in required if one.name == EXIT] or required


def bridge_import(run: LevelRun) -> Criterion:
    """Whether verl used the Bridge checkout under test, in the driver and in a Ray worker: by the preflight's marks, by
    paths in the log, and by what the trainings' processes imported."""
    source = f"{run.root.rstrip('/')}/src" if run.root else "the Bridge checkout's src"
    # A path that is read from a text begins after its last space.
    sources = (f"{source}/", "/" + f"{source}/".rpartition(" ")[2].partition("/")[2])

    def elsewhere(path: str) -> bool:
        return bool(_INSTALLED.search(path)) or bool(run.root and not f"{path}/".startswith(sources))

    wrong, right, unseen, own = list[str](), list[str](), list[str](), False
    for key, who in ((DRIVER, "driver"), (WORKER, "Ray worker")):
        mark = run.facts.preflight.get(key, Deliverable(key, "", "not checked"))
        path, passed = _PATH.search(mark.text), mark.status == "pass"
        broken = mark.status in ("fail", "blocked") and stage_of_check(key, mark.text) is OWN_IMPORT
        is_wrong = broken or mark.status == "fail" or (passed and path is not None and elsewhere(path[0]))
        own = own or broken
        (wrong if is_wrong else right if passed else unseen).append(f"{who}: {mark.text}")
    for name, training in run.facts.trainings.items():
        said = [(line.place, path) for path, line in training.bridge_paths.items() if elsewhere(path)]
        if training.error and attribute(training.error, True, run.root).stage is WRONG_PATH:
            said.append((training.error.place, training.error.text))
        seen = with_outcome(import_criteria(evidence_of(run.evidence, training), run.root), CONTRADICTED)
        said += [(one.place or one.name, one.evidence) for one in seen]
        wrong += [f"{place} of {name}: {what}" for place, what in said]
    text = "; ".join(dict.fromkeys([*wrong, *right, *unseen]))
    if not wrong:
        return Criterion(IMPORT, NOT_SEEN if unseen else SHOWN, text)
    if own:
        return Criterion(IMPORT, CONTRADICTED, text, "", OWN_IMPORT.follow_up)
    return Criterion(IMPORT, CONTRADICTED, f"not under {source}: {text}", "", WRONG_PATH.follow_up, environment=True)


# -- the guide's summary -----------------------------------------------------------------------------------------------


def summarize(run: LevelRun) -> Summary:
    verdict, context = judge_run(run), run.context
    request, began = context.request, list(run.facts.trainings.values())
    title = f"Level {request.level} ({LEVELS[request.level].title})"
    variants = {2: ", ".join(request.variants), 5: f"{request.steps} steps", 4: request.script}.get(request.level)
    reached = {DRIVER, WORKER} & {*run.facts.preflight} or not run.facts.preflight
    imported = {SHOWN: PASS, CONTRADICTED: FAIL}.get(verdict.imports.outcome, NOT_PROVEN if reached else BLOCKED)
    import_text = verdict.imports.evidence if reached else f"not reached: {run.why_nothing_ran}"
    host = [f"{what} {value}" for what, value in (("image", run.image), ("host", run.host)) if value]
    deliverables = (
        _checks(run), Deliverable(IMPORT, imported, truncated(import_text, _LONGEST)),
        _of_trainings(run, verdict, BACKEND), _of_trainings(run, verdict, VARIANTS),
        Deliverable(LOG, PASS if run.log else SKIPPED, run.log or "there is no log"),
    )  # fmt: skip
    evidence = {"Bridge repo": repository(context.bridge), "verl repo": repository(context.verl)}
    evidence |= {"Command": context.command, "Key lines": "; ".join([*_key_lines(run, began), *host])}
    return Summary(
        result=verdict.result, sentence=_sentence(run, verdict), deliverables=deliverables, evidence=evidence,
        requested=f"{title}{f': {variants}' if variants else ''}", checkpoint=_checkpoint(run, began),
        limitations=_listed(_limitations(run, verdict), _MOST_LIMITATIONS),
        follow_ups=("none",) if verdict.result == PASS else _listed(_follow_ups(run, verdict), _MOST_FOLLOW_UPS),
        preflight=tuple(run.facts.preflight.values()),
        criteria=tuple(one for one in verdict.trainings if one.criteria),
    )  # fmt: skip


def text(summary: Summary) -> list[str]:
    """The summary's lines."""
    lines = [f"Result: {summary.result} - {summary.sentence}", f"Requested coverage: {summary.requested}"]
    lines.append(f"Checkpoint/config: {summary.checkpoint}")
    for title, items in (
        ("Deliverables", [f"{one.name}: {one.status} - {one.text}" for one in summary.deliverables]),
        ("Evidence", [f"{name}: {value}" for name, value in summary.evidence.items()]),
        ("Limitations", summary.limitations or ("none",)),
        ("Follow-ups", summary.follow_ups or ("none",)),
    ):
        lines += [f"{title}:", *(f"- {item}" for item in items)]
    return [printable(line) for line in lines]


def repository(tree: Checkout) -> str:
    """Its commit, which git knows, plus the files that differ from it."""
    if not tree.head:
        return "no git repository" if tree.commit else "not known: only a log was judged"
    return f"{short(tree.head)}{' plus ' if tree.dirty else ', no dirty files'}{some(tree.dirty, _MOST_DIRTY)}"


def _sentence(run: LevelRun, verdict: RunVerdict) -> str:
    """What was validated, and how far it came; never more than that."""
    level, no_evidence = run.context.request.level, "; this is not evidence against the Bridge change"
    text = f"{truncated(verdict.why, _LONGEST)}{no_evidence if verdict.result == BLOCKED else ''}"
    if verdict.result == PASS:
        text = f"Level {level} passed: {LEVELS[level].proves}"
    return f"{text} (on {run.host}, which only simulates GPUs)" if run.context.simulated else text


def _checkpoint(run: LevelRun, began: Sequence[TrainingFacts]) -> str:
    request = run.context.request
    named = {"dummy config ": request.dummy_config, "MODEL_ID=": request.model_id, "MODEL_PATH=": request.model_path}
    paths = {str(one.settings.get("actor_rollout_ref.model.path", "")) for one in began}
    named["resolved to "] = ", ".join(sorted(paths - {request.model_path}))
    return ", ".join(f"{name}{value}" for name, value in named.items() if value) or "the wrapper's default"


def _checks(run: LevelRun) -> Deliverable:
    said = {"blocked": "could not be run: ", "cited": "as cited, not run here: "}.get(run.checks.status, "")
    status = {"pass": PASS, "cited": PASS, "fail": FAIL}.get(run.checks.status, SKIPPED)
    return Deliverable(CHECKS, status, truncated(said + run.checks.text, _LONGEST))


def _of_trainings(run: LevelRun, verdict: RunVerdict, name: str) -> Deliverable:
    """Level 0's for the backend, the others' for the variants."""
    pairs = zip(run.trainings, verdict.trainings, strict=True)
    wanted = [one for training, one in pairs if (training.level == 0) == (name == BACKEND)]
    if not wanted:
        nothing = (records.NOT_REQUESTED, "Level 0 only") if name == VARIANTS else (SKIPPED, "`--level 0` judges it")
        return Deliverable(name, *nothing)
    status = min((one.status for one in wanted), key=(FAIL, BLOCKED, NOT_PROVEN, SKIPPED, PASS).index)
    each = [f"{one.training}: {one.status}, {truncated(one.text, _LONGEST_LINE)}" for one in wanted]
    if len({one.text for one in wanted}) == 1:
        each = [truncated(wanted[0].text, _LONGEST)]
    title = LEVELS[0 if name == BACKEND else run.context.request.level].title
    return Deliverable(name, status, f"{title}: {'; '.join(each)}")


def _key_lines(run: LevelRun, began: Sequence[TrainingFacts]) -> list[str]:
    """What was active in the last training that began, how far it came, and the first relevant error."""
    lines = [] if began else ["no training started"]
    for facts in began[-1:]:
        found = {name: facts.settings.get(SETTINGS[name], MISSING) for name in _NAMED}
        active = [f"{name}={value_text(value)}" for name, value in found.items() if value is not MISSING]
        lines.append(f"resolved {', '.join(active)}" if active else "resolved settings not seen")
        said = (facts.said[name] for name in ("scratch", "resumed", "progress", "step") if name in facts.said)
        lines += [f"{line.place}: {truncated(line.text, _LONGEST_LINE)}" for line in said]
    errors = [f"{error.place}: {truncated(error.text, _LONGEST_LINE)}" for one in began if (error := one.error)]
    return [*lines, *errors[:1]]


def _limitations(run: LevelRun, verdict: RunVerdict) -> Iterator[str]:
    if run.context.simulated:
        yield "simulated GPUs: neither hardware nor a real Bridge was tested"
    yield from run.context.remarks
    yield from limitations(run.context.request)
    if run.checks.status not in ("pass", "fail"):
        yield "focused Bridge checks were not run here: external compatibility smoke only"
    for line in [facts.said["noise"] for facts in run.facts.trainings.values() if "noise" in facts.said][:1]:
        said = truncated(line.text, _LONGEST_LINE)
        yield f"known shutdown warnings after the last step, such as {line.place}: {said}"
    for one in verdict.trainings:
        yield from (f"{one.training}: {found}" for found in with_outcome(one.criteria, NOT_SEEN) if found.optional)


def _follow_ups(run: LevelRun, verdict: RunVerdict) -> Iterator[str]:
    if run.checks.status == "fail":
        yield "provider fix: the focused Bridge checks must pass before the external run counts"
    yield verdict.imports.follow_up
    if not run.facts.trainings:
        yield from (stage_of_check(mark.name, mark.text).follow_up for mark in run.blocking)
        if not run.blocking and verdict.result == BLOCKED:
            yield stage_of(run.reason).follow_up
    for one in verdict.trainings:
        yield from (found.follow_up for found in deciding(one.status, one.criteria) if one.status != PASS)
    if verdict.result == NOT_PROVEN and not run.checked:
        yield "run the focused Bridge checks: give the image uv or pytest, and --test FILE for others"
    skipped = [one.training for one in verdict.trainings if one.status == SKIPPED]
    yield f"rerun what was skipped: {', '.join(skipped)}" if skipped else ""


def _listed(lines: Iterable[str], most: int) -> tuple[str, ...]:
    """Each once; if there are too many for the summary's length, the rest in the last line."""
    known = tuple(dict.fromkeys(filter(None, lines)))
    return known if len(known) <= most else (*known[: most - 1], "; ".join(known[most - 1 :]))
