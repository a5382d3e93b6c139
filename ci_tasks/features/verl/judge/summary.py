"""The guide's summary of a judged run: its fields, in its words, at most 30 lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ci_tasks.errors import printable, truncated
from ci_tasks.features.verl.judge import records
from ci_tasks.features.verl.judge.attribution import stage_of, stage_of_check
from ci_tasks.features.verl.judge.records import BLOCKED, FAIL, NOT_PROVEN, PASS, SKIPPED, Deliverable, Summary
from ci_tasks.features.verl.judge.settings import MISSING, value_text
from ci_tasks.features.verl.judge.training_log import DRIVER, WORKER, TrainingFacts
from ci_tasks.features.verl.judge.verdict import IMPORT, LevelRun, RunVerdict, deciding, judge_run
from ci_tasks.features.verl.levels import levels
from ci_tasks.features.verl.levels.levels import LEVELS, SETTINGS
from ci_tasks.records import PASSED

CHECKS, BACKEND = "Bridge-side checks", "verl Megatron backend run"
VARIANTS, LOG = "Requested variants", "Log capture"
NO_EVIDENCE = "this is not evidence against the Bridge change"
_LONGEST, _LONGEST_LINE = 300, 160  # characters of a reason, and of a line that is quoted
_MOST_LIMITATIONS, _MOST_FOLLOW_UPS = 9, 5  # so that the summary has at most 30 lines
# What the key lines name of the resolved settings, by the wrapper's variables.
_NAMED = ("ADV_ESTIMATOR", "ENGINE", "VANILLA_MBRIDGE", "LORA_RANK", "USE_MEGATRON_FSDP", "COMMON_TP", "COMMON_PP")


def summarize(run: LevelRun) -> Summary:
    verdict = judge_run(run)
    request, began = run.request, list(run.facts.trainings.values())
    title = f"Level {request.level} ({LEVELS[request.level].title})"
    variants = {2: ", ".join(request.variants), 5: f"{request.steps} steps", 4: request.script}.get(request.level)
    host = [f"{what} {value}" for what, value in (("image", run.image), ("host", run.host)) if value]
    return Summary(
        result=verdict.result,
        sentence=_sentence(run, verdict),
        requested=f"{title}{f': {variants}' if variants else ''}",
        checkpoint=_checkpoint(run, began),
        deliverables=(
            _checks(run),
            _imports(run, verdict),
            _of_trainings(run, verdict, BACKEND),
            _of_trainings(run, verdict, VARIANTS),
            Deliverable(LOG, PASS if run.log else FAIL, run.log or "there is no log"),
        ),
        evidence={
            "Bridge repo": run.bridge,
            "verl repo": run.verl,
            "Command": run.command,
            "Key lines": "; ".join([*_key_lines(run, began), *host]),
        },
        limitations=_listed(_limitations(run, verdict), _MOST_LIMITATIONS),
        follow_ups=("none",) if verdict.result == PASS else _listed(_follow_ups(run, verdict), _MOST_FOLLOW_UPS),
        preflight=tuple(run.facts.preflight.values()),
        criteria=tuple(one for one in verdict.trainings if one.criteria),
    )


def text(summary: Summary) -> list[str]:
    """The summary's lines."""
    lines = [
        f"Result: {summary.result} - {summary.sentence}",
        f"Requested coverage: {summary.requested}",
        f"Checkpoint/config: {summary.checkpoint}",
        "Deliverables:",
        *(f"- {one.name}: {one.status} - {one.text}" for one in summary.deliverables),
        "Evidence:",
        *(f"- {name}: {value}" for name, value in summary.evidence.items()),
        "Limitations:",
        *(f"- {line}" for line in summary.limitations or ("none",)),
        "Follow-ups:",
        *(f"- {line}" for line in summary.follow_ups or ("none",)),
    ]
    return [printable(line) for line in lines]


def _sentence(run: LevelRun, verdict: RunVerdict) -> str:
    """What was validated, and how far it came; never more than that."""
    level = run.request.level
    text = f"{truncated(verdict.why, _LONGEST)}{f'; {NO_EVIDENCE}' if verdict.result == BLOCKED else ''}"
    if verdict.result == PASS:
        text = f"Level {level} passed: {LEVELS[level].proves}"
    if verdict.result == PASS and level == 5:
        text = f"Level 5 learning-signal passed over {run.request.steps} steps; no claim of benchmark convergence"
    return f"{text} (on {run.host}, which only simulates GPUs)" if run.simulated else text


def _checkpoint(run: LevelRun, began: Sequence[TrainingFacts]) -> str:
    request = run.request
    named = {"dummy config ": request.dummy_config, "MODEL_ID=": request.model_id, "MODEL_PATH=": request.model_path}
    paths = [str(one.settings.get("actor_rollout_ref.model.path", "")) for one in began]
    named["resolved to "] = ", ".join(sorted({*paths} - {request.model_path}))
    return ", ".join(f"{name}{value}" for name, value in named.items() if value) or "the wrapper's default"


def _checks(run: LevelRun) -> Deliverable:
    if run.checks is None:
        why = "not in this log: --checks-from TEXT cites them" if run.status == PASSED else f"not run: {run.ending}"
        return Deliverable(CHECKS, SKIPPED, why)
    said = {"blocked": "could not be run: ", "cited": "as cited, not run here: "}.get(run.checks.status, "")
    status = {"pass": PASS, "cited": PASS, "fail": FAIL}.get(run.checks.status, SKIPPED)
    return Deliverable(CHECKS, status, truncated(said + run.checks.text, _LONGEST))


def _imports(run: LevelRun, verdict: RunVerdict) -> Deliverable:
    reached = {DRIVER, WORKER} & {*run.facts.preflight} or not run.facts.preflight
    unseen = NOT_PROVEN if reached else BLOCKED
    status = {records.SHOWN: PASS, records.CONTRADICTED: FAIL}.get(verdict.imports.outcome, unseen)
    evidence = verdict.imports.evidence if reached else f"not reached: {run.why_nothing_ran()}"
    return Deliverable(IMPORT, status, truncated(evidence, _LONGEST))


def _of_trainings(run: LevelRun, verdict: RunVerdict, name: str) -> Deliverable:
    """Level 0's for the backend, the others' for the variants."""
    pairs = zip(run.trainings, verdict.trainings, strict=True)
    wanted = [one for training, one in pairs if (training.level == 0) == (name == BACKEND)]
    if not wanted:
        nothing = (records.NOT_REQUESTED, "Level 0 only") if name == VARIANTS else (SKIPPED, "not in this log")
        return Deliverable(name, *nothing)
    status = min((one.status for one in wanted), key=(FAIL, BLOCKED, NOT_PROVEN, SKIPPED, PASS).index)
    title = LEVELS[0 if name == BACKEND else run.request.level].title
    if len({one.text for one in wanted}) == 1:
        return Deliverable(name, status, f"{title}: {truncated(wanted[0].text, _LONGEST)}")
    each = (f"{one.training}: {one.status}, {truncated(one.text, _LONGEST_LINE)}" for one in wanted)
    return Deliverable(name, status, f"{title}: {'; '.join(each)}")


def _key_lines(run: LevelRun, began: Sequence[TrainingFacts]) -> list[str]:
    """What was active in the last training that began, how far it came, and the first relevant error."""
    lines = [] if began else ["no training began"]
    for facts in began[-1:]:
        found = {name: facts.settings.get(SETTINGS[name], MISSING) for name in _NAMED}
        active = [f"{name}={value_text(value)}" for name, value in found.items() if value is not MISSING]
        lines.append(f"resolved {', '.join(active)}" if active else "resolved settings not seen")
        said = (facts.said[name] for name in ("scratch", "resumed", "progress", "step") if name in facts.said)
        lines += [f"{line.place}: {truncated(line.text, _LONGEST_LINE)}" for line in said]
    errors = [*(one.error for one in began), run.facts.error]
    lines += [f"{error.place}: {truncated(error.text, _LONGEST_LINE)}" for error in errors if error is not None][:1]
    return lines


def _limitations(run: LevelRun, verdict: RunVerdict) -> Iterator[str]:
    if run.simulated:
        yield "simulated GPUs: nothing of the hardware, and nothing of a real Bridge, was tested"
    yield from run.remarks
    yield from levels.limitations(run.request)
    if not run.checks or run.checks.status not in ("pass", "fail"):
        yield "focused Bridge checks were not run here: external compatibility smoke only"
    for line in [line for facts in run.facts.trainings.values() for line in facts.noise][:1]:
        said = truncated(line.text, _LONGEST_LINE)
        yield f"known shutdown warnings after the last step, such as {line.place}: {said}"
    for one in verdict.trainings:
        unseen = records.with_outcome(one.criteria, records.NOT_SEEN)
        yield from (f"{one.training}: {found}" for found in unseen if found.optional)


def _follow_ups(run: LevelRun, verdict: RunVerdict) -> Iterator[str]:
    if run.checks is not None and run.checks.status == "fail":
        yield "provider fix: the focused Bridge checks have to pass before the external run says anything"
    yield verdict.imports.follow_up
    if not run.facts.trainings:
        yield from (stage_of_check(mark.name, mark.text).follow_up for mark in run.blocking())
        if not run.blocking() and verdict.result == BLOCKED:
            yield stage_of(run.facts.error.text if run.facts.error and not run.stopped else run.reason).follow_up
    for one in verdict.trainings:
        yield from (found.follow_up for found in deciding(one.status, one.criteria) if one.status != PASS)
    if verdict.result == NOT_PROVEN and not run.checked:
        yield "run the focused Bridge checks: give the image uv or pytest, and --test FILE for others"
    skipped = [one.training for one in verdict.trainings if one.status == SKIPPED]
    yield f"rerun what was skipped: {', '.join(skipped)}" if skipped else ""


def _listed(lines: Iterable[str], most: int) -> tuple[str, ...]:
    """Each once; those that are too many for the summary's length in the last line."""
    known = tuple(dict.fromkeys(filter(None, lines)))
    return known if len(known) <= most else (*known[: most - 1], "; ".join(known[most - 1 :]))
