"""The guide's summary of a judged run: its fields, in words, at most 30 lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ci_tasks.errors import truncated
from ci_tasks.features.verl.judge.attribution import attribute, stage_of_check, stage_of_reason
from ci_tasks.features.verl.judge.criteria import value_text
from ci_tasks.features.verl.judge.settings import MISSING
from ci_tasks.features.verl.judge.training_log import DRIVER, WORKER
from ci_tasks.features.verl.judge.verdict import LevelRun, RunVerdict, deciding
from ci_tasks.features.verl.levels import levels
from ci_tasks.features.verl.levels.levels import LEVELS, SETTINGS
from ci_tasks.features.verl.levels.summary import (
    BACKEND,
    BLOCKED,
    CHECKS,
    CONTRADICTED,
    FAIL,
    IMPORT,
    LOG,
    NOT_PROVEN,
    NOT_REQUESTED,
    NOT_SEEN,
    PASS,
    SHOWN,
    SKIPPED,
    VARIANTS,
    Deliverable,
    EvidenceItem,
    Summary,
    TrainingCriteria,
    with_outcome,
)

NO_EVIDENCE = "this is not evidence against the Bridge change"
_WORST_FIRST = (FAIL, BLOCKED, NOT_PROVEN, SKIPPED, PASS)
_LONGEST, _LONGEST_LINE = 300, 160  # characters of a reason, and of a line that is quoted
_MOST_LIMITATIONS, _MOST_FOLLOW_UPS = 9, 5  # so that the summary has at most 30 lines
# What the key lines name of the resolved settings, by the wrapper's variables.
_NAMED = ("ADV_ESTIMATOR", "ENGINE", "VANILLA_MBRIDGE", "LORA_RANK", "USE_MEGATRON_FSDP", "COMMON_TP", "COMMON_PP")


def judge(run: LevelRun) -> Summary:
    verdict = RunVerdict(run)
    result, why = verdict.result()
    request = verdict.request
    title = f"Level {request.level} ({LEVELS[request.level].title})"
    variants = {2: ", ".join(request.variants), 5: f"{request.steps} steps", 4: request.script}.get(request.level)
    return Summary(
        result=result,
        sentence=_sentence(verdict, result, why),
        requested=f"{title}{f': {variants}' if variants else ''}",
        checkpoint=_checkpoint(verdict),
        deliverables=tuple(_deliverables(verdict)),
        evidence=tuple(_evidence(verdict)),
        limitations=_listed(_limitations(verdict), _MOST_LIMITATIONS),
        follow_ups=("none",) if result == PASS else _listed(_follow_ups(verdict, result), _MOST_FOLLOW_UPS),
        passed_level=verdict.passed_level,
        preflight=tuple(Deliverable(mark.key, mark.status, mark.text) for mark in verdict.marks.values()),
        criteria=tuple(
            TrainingCriteria(one.training.name, one.status, one.criteria) for one in verdict.verdicts if one.criteria
        ),
    )


def _sentence(verdict: RunVerdict, result: str, why: str) -> str:
    """What was validated, and how far it came; never more than that."""
    level, passed = verdict.request.level, verdict.passed_level
    host = verdict.run.provenance.simulated
    on = f" (on {host}, which only simulates GPUs)" if host else ""
    if result == PASS and level == 5:
        steps = max(one.training.steps for one in verdict.verdicts)
        return f"Level 5 learning-signal passed over {steps} steps; no claim of benchmark convergence{on}"
    if result == PASS:
        return f"Level {level} passed: {LEVELS[level].proves}{on}"
    reached = f"; level {passed} passed" if passed is not None and passed < level else ""
    about = f"; {NO_EVIDENCE}" if result == BLOCKED else ""
    return f"{truncated(why, _LONGEST)}{reached}{about}{on}"


def _checkpoint(verdict: RunVerdict) -> str:
    request = verdict.request
    named = {
        "dummy config ": request.dummy_config,
        "MODEL_ID=": request.model_id,
        "MODEL_PATH=": request.model_path,
    }
    parts = [f"{name}{value}" for name, value in named.items() if value]
    paths = (one.facts.settings.get("actor_rollout_ref.model.path") for one in verdict.verdicts if one.facts)
    resolved = {str(path) for path in paths if path is not MISSING} - {request.model_path}
    parts += [f"resolved to {', '.join(sorted(resolved))}"] if resolved else []
    return ", ".join(parts) or "the wrapper's default"


def _deliverables(verdict: RunVerdict) -> Iterator[Deliverable]:
    checks = verdict.checks
    if checks is None:
        yield Deliverable(CHECKS, SKIPPED, f"not run: {verdict.ending()}")
    else:
        text = {"blocked": "could not be run: ", "cited": "as cited, not run here: "}.get(checks.status, "")
        status = {"pass": PASS, "cited": PASS, "fail": FAIL}.get(checks.status, SKIPPED)
        yield Deliverable(CHECKS, status, truncated(text + checks.text, _LONGEST))
    reached = {DRIVER, WORKER} & {*verdict.marks} or not verdict.marks
    unseen = NOT_PROVEN if reached else BLOCKED
    status = {SHOWN: PASS, CONTRADICTED: FAIL}.get(verdict.imports.outcome, unseen)
    text = verdict.imports.evidence if reached else f"not reached: {verdict.why_nothing_ran()}"
    yield Deliverable(IMPORT, status, truncated(text, _LONGEST))
    yield _of_trainings(verdict, BACKEND, 0)
    yield _of_trainings(verdict, VARIANTS, verdict.request.level)
    log = f"{verdict.log}{f': {verdict.ended.log_error}' if verdict.ended.log_error else ''}"
    yield Deliverable(LOG, PASS if verdict.logged else FAIL, log or "there is no log")


def _of_trainings(verdict: RunVerdict, name: str, level: int) -> Deliverable:
    wanted = [one for one in verdict.verdicts if (one.training.level == 0) == (name == BACKEND)]
    if not wanted:
        nothing = (NOT_REQUESTED, "Level 0 only") if name == VARIANTS else (SKIPPED, "not in this log")
        return Deliverable(name, *nothing)
    status = next(worst for worst in _WORST_FIRST if any(one.status == worst for one in wanted))
    texts = {one.training.name: one.text for one in wanted}
    if len(set(texts.values())) == 1:
        return Deliverable(name, status, f"{LEVELS[level].title}: {truncated(wanted[0].text, _LONGEST)}")
    each = (f"{one.training.name}: {one.status}, {truncated(one.text, _LONGEST_LINE)}" for one in wanted)
    return Deliverable(name, status, f"{LEVELS[level].title}: {'; '.join(each)}")


def _evidence(verdict: RunVerdict) -> Iterator[EvidenceItem]:
    known = verdict.run.provenance
    where = [f"{what} {value}" for what, value in (("image", known.image), ("host", known.host)) if value]
    yield EvidenceItem("Bridge repo", (known.bridge,))
    yield EvidenceItem("verl repo", (known.verl,))
    yield EvidenceItem("Command", (known.command or "not known: only its log was judged",))
    yield EvidenceItem("Key lines", (*(_key_lines(verdict) or ("no training began",)), *where))


def _key_lines(verdict: RunVerdict) -> list[str]:
    """What was active in the last training that began, how far it came, and the first relevant error."""
    began = [one.facts for one in verdict.verdicts if one.facts is not None]
    lines = []
    for facts in began[-1:]:
        values = {name: facts.settings.get(SETTINGS[name]) for name in _NAMED}
        active = [f"{name}={value_text(value)}" for name, value in values.items() if value is not MISSING]
        lines.append(f"resolved {', '.join(active)}" if active else "resolved settings not seen")
        said = (facts.said[name] for name in ("scratch", "resumed", "progress", "step") if name in facts.said)
        lines += [f"{line.place}: {truncated(line.text, _LONGEST_LINE)}" for line in said]
    errors = [*(one.error for one in began), verdict.facts.error]
    for error in [one for one in errors if one is not None][:1]:
        lines.append(f"{error.place}: {truncated(error.text, _LONGEST_LINE)}")
    return lines


def _limitations(verdict: RunVerdict) -> Iterator[str]:
    if verdict.run.provenance.simulated:
        yield "simulated GPUs: nothing of the hardware, and nothing of a real Bridge, was tested"
    yield from verdict.run.remarks
    yield from levels.limitations(verdict.request)
    if not verdict.checks or verdict.checks.status not in ("pass", "fail"):
        yield "focused Bridge checks were not run here: external compatibility smoke only"
    noise = [line for one in verdict.verdicts if one.facts is not None for line in one.facts.noise]
    if noise:
        text = truncated(noise[0].text, _LONGEST_LINE)
        yield f"known shutdown warnings after the last step, such as {noise[0].place}: {text}"
    for one in verdict.verdicts:
        unseen = with_outcome(one.criteria, NOT_SEEN)
        yield from (f"{one.training.name}: {found}" for found in unseen if found.optional)


def _follow_ups(verdict: RunVerdict, result: str) -> Iterator[str]:
    if verdict.checks is not None and verdict.checks.status == "fail":
        yield "provider fix: the focused Bridge checks have to pass before the external run says anything"
    yield verdict.imports.follow_up
    if not any(one.facts for one in verdict.verdicts):
        yield from (stage_of_check(mark.key, mark.text).follow_up for mark in verdict.blocking())
        if verdict.ended.stopped and not verdict.blocking():
            yield stage_of_reason(verdict.ended.reason).follow_up
        elif not verdict.blocking() and verdict.facts.error is not None:
            yield attribute(verdict.facts.error, False).stage.follow_up
    for one in verdict.verdicts:
        yield from (found.follow_up for found in deciding(one.status, one.criteria) if one.status != PASS)
    if result == NOT_PROVEN and not verdict.checked:
        yield "run the focused Bridge checks: give the image uv or pytest, and --test FILE for others"
    skipped = [one.training.name for one in verdict.verdicts if one.status == SKIPPED]
    yield f"rerun what was skipped: {', '.join(skipped)}" if skipped else ""


def _listed(lines: Iterable[str], most: int) -> tuple[str, ...]:
    """Each once; those that are too many for the summary's length in the last line."""
    known = tuple(dict.fromkeys(filter(None, lines)))
    return known if len(known) <= most else (*known[: most - 1], "; ".join(known[most - 1 :]))
