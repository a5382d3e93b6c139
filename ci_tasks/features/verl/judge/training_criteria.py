"""The guide's criteria for one training, in the order in which it goes through them; here those of what happened, and
of levels 1 and 4."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ci_tasks.features.verl.judge.checkpoint_criteria import checkpoint_files, same_step
from ci_tasks.features.verl.judge.failure_stages import CHANGE, CONSTRUCTION, ENVIRONMENT, UNCLEAR, locate_logged
from ci_tasks.features.verl.judge.log_records import Metrics, TrainingFacts
from ci_tasks.features.verl.judge.model_criteria import lora, parallel_sizes, wrapper
from ci_tasks.features.verl.judge.setting_criteria import non_vanilla, rollout_engine, settings_as_asked
from ci_tasks.features.verl.judge.training_run import TrainingRun, line_place
from ci_tasks.features.verl.levels.criterion import Criterion, contradicted, not_seen, shown
from ci_tasks.features.verl.levels.levels import Training

STEPS = "training steps"
FINITE = "finite metrics"
NO_EXCEPTION = f"no exception in {CONSTRUCTION} or a step"
EXIT = "successful exit"
RESUME = "resume from the checkpoint"
FEATURE = "the feature active"
_WATCHED = re.compile(r"(?i)loss|reward|score|(?:^|[/_])kl|entrop|grad_norm|log_?prob|advantages|returns")
# verl says NaN where it had nothing to compare; auxiliary scores are the data set's own.
_EXCUSED = ("training/rollout_probs_diff", "val-aux/")


def criteria_of(run: TrainingRun) -> tuple[Criterion, ...]:
    """In the order in which a training goes through them."""
    return (
        *run.imports,
        settings_as_asked(run),
        non_vanilla(run),
        rollout_engine(run),
        *lora(run),
        wrapper(run),
        *parallel_sizes(run),
        _steps(run),
        _finite(run.facts.metrics),
        _no_exception(run),
        _exit(run),
        *(checkpoint_files(run) if run.training.level == 1 else ()),
        *(_resume(run.training, run.facts) if run.training.resumes else ()),
        *((same_step(run, run.resumed),) if run.training.same_as else ()),
        *(_features(run) if run.training.level == 4 else ()),
    )


# -- what happened -----------------------------------------------------------------------------------------------------


def _steps(run: TrainingRun) -> Criterion:
    facts, steps = run.facts, run.training.steps
    place = line_place(facts.progress_seen)
    if facts.finished and facts.progress == (steps, steps) and steps in facts.metrics:
        return shown(STEPS, f"Training Progress {steps}/{steps}, metrics of global step {steps}", place)
    missed = []
    if facts.progress is None:
        missed.append("no Training Progress in the log")
    elif facts.progress != (steps, steps):
        missed.append(f"Training Progress is {facts.progress[0]}/{facts.progress[1]}, not {steps}/{steps}")
    if steps not in facts.metrics:
        missed.append(f"no metrics of global step {steps}")
    seen = facts.progress is not None and facts.progress != (steps, steps)
    # Where it failed for a known reason, that decides what the missing steps mean.
    if seen and facts.exit_code == 0 and run.location() is None:
        return contradicted(STEPS, "; ".join(missed), place)
    return not_seen(STEPS, "; ".join(missed), "see the end of the log: why verl logged no such step", place)


def _finite(metrics: Metrics) -> Criterion:
    """No NaN or infinity in loss, reward, KL, entropy, gradient norm or logprob metrics."""
    for step in sorted(metrics):
        for key, value in metrics[step].items():
            if _WATCHED.search(key) and not math.isfinite(value) and not key.startswith(_EXCUSED):
                return contradicted(
                    FINITE, f"{key} is {value} at step {step}", follow_up="triage the metrics: data, reward, Bridge"
                )
    if not any(_WATCHED.search(key) for step, values in metrics.items() if step > 0 for key in values):
        return not_seen(FINITE, "no loss, reward or gradient norm was logged", "let verl log to the console")
    return shown(FINITE, f"losses, rewards, KL, entropy and gradients at {sum(step > 0 for step in metrics)} steps")


def _no_exception(run: TrainingRun) -> Criterion:
    """Of a swallowed one the exit code says nothing. What has no frame in Bridge, or in verl's code around it, may have
    been handled where it was raised; what kills a process was not."""
    doubtful: Criterion | None = None
    for failure in run.failures:
        location = locate_logged(failure, failure.construction or run.facts.constructed(failure.line_no or None))
        if failure.construction and location.owner == CHANGE:
            return contradicted(NO_EXCEPTION, failure.text, failure.place, location.stage.follow_up)
        harmful = failure.construction or not failure.frames or location.stage.name == "GPU memory"
        if doubtful is None and harmful and not failure.finished:
            doubtful = not_seen(NO_EXCEPTION, f"{location}: {failure.text}", location.stage.follow_up, failure.place)
    if doubtful is not None:
        return doubtful
    if not run.ended_well:
        return not_seen(NO_EXCEPTION, "it did not come to its end")
    return shown(NO_EXCEPTION, "none in its log" + (" or its processes" if run.imports else ""))


def _exit(run: TrainingRun) -> Criterion:
    facts, location = run.facts, run.location()
    if location is None and facts.exit_code == 0 and facts.starts > 1:
        text = f"exit code 0 is of the last of {facts.starts} starts of the trainer"
        return not_seen(EXIT, text, "find out why the trainer was started again")
    if location is None and facts.exit_code == 0:
        return shown(EXIT, "exit code 0")
    place, text = _failure(facts)
    if location is None:
        return not_seen(EXIT, text, place=place)
    text = f"{location}: {text}"
    if facts.finished and facts.exit_code != 0:
        text = f"all steps are done, but the process did not exit successfully: {text}"
    if location.owner == UNCLEAR:
        return not_seen(EXIT, text, location.stage.follow_up, place)
    follow_up = location.stage.follow_up
    return contradicted(EXIT, text, place, follow_up, environment=location.owner == ENVIRONMENT)


def _failure(facts: TrainingFacts) -> tuple[str, str]:
    """(place, text) of what ended it."""
    code = "it did not end" if facts.exit_code is None else f"exit code {facts.exit_code}"
    if facts.error is not None and facts.error.line:
        return f"line {facts.error.line_no}", f"{code}, {facts.error.text or facts.error.line}"
    return "", f"{code}; the log does not say why"


# -- levels ------------------------------------------------------------------------------------------------------------


def _resume(training: Training, facts: TrainingFacts) -> Iterator[Criterion]:
    from_step = training.steps - 1
    why = "find out why the checkpoint was not loaded: keep verl's checkpoints/ between save and resume"
    again = [step for step in facts.metrics if 0 < step <= from_step]
    if facts.scratch is not None:
        yield contradicted(RESUME, facts.scratch.text, line_place(facts.scratch), why)
    elif again:
        yield contradicted(RESUME, f"it trained global step {again[0]} again: nothing was loaded", "", why)
    elif facts.resumed_from is None:
        yield not_seen(RESUME, "no line says from which checkpoint", why)
    elif facts.resumed_from != from_step:
        text = f"it resumed at global step {facts.resumed_from}, not {from_step}"
        yield contradicted(RESUME, text, line_place(facts.resumed_seen), why)
    else:
        yield shown(RESUME, f"resumed at global step {from_step}", line_place(facts.resumed_seen))


def _features(run: TrainingRun) -> Iterator[Criterion]:
    todo = "rerun with a command that activates the feature, or correct --proof"
    for pattern in run.request.proofs:
        line, plain = run.facts.proofs.get(pattern), run.plain.get(pattern)
        if line is None:
            yield not_seen(FEATURE, f"no line matches {pattern!r}", todo)
        elif plain is not None:
            text = f"{pattern!r} proves nothing: level 0, without the feature, has such a line too"
            yield not_seen(FEATURE, text, todo, line_place(plain))
        else:
            yield shown(FEATURE, repr(line.text), line_place(line))
