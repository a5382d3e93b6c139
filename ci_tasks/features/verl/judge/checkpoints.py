"""Level 1's checkpoints, as the probe's hook saw them written and read, and what a resume made of them. Pure.

criterion                               contradicted by
checkpoint files written                an error, none of the actor's, another step's
checkpoint files read                   the same, a file that is empty, one that the training before did not write
resume from the checkpoint              a training from scratch, another step, another directory
same step as without an interruption    (only not seen) other tensors after it, by the bytes of their files

Files and sizes contradict a checkpoint, and show no more than that it was there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ci_tasks.errors import counted
from ci_tasks.features.verl.judge.records import Criterion, contradicted, not_seen, shown
from ci_tasks.features.verl.judge.training_run import SEE_PROBE, CheckpointFiles, TrainingRun

WRITTEN, READ, RESUME = "checkpoint files written", "checkpoint files read", "resume from the checkpoint"
SAME = "same step as without an interruption"
_CONTENT = (".json", ".safetensors", ".distcp", ".pt", ".pth", ".bin")  # a file of these that is empty holds nothing
_CHECKPOINT_FIX = "checkpoint fix: see what the save wrote, and rerun level 1"
_NOT_LOADED = "find out why the checkpoint was not loaded: keep verl's checkpoints/ between save and resume"
# Of a step: the metrics that its tensors decide, and not its clock.
_OF_TENSORS = re.compile(r"^(?:actor|critic|prompt_length|response_length|val-core)/(?!.*mfu)")
# Random states and the data's position are none of the model's.
_TENSORS = re.compile(r"^(?!(?:.*/)?extra[/_]|data).*(?:\.(?:safetensors|distcp|pth?|bin)|model\.json)$")


def checkpoint_criteria(run: TrainingRun) -> Iterator[Criterion]:
    """What was written of the actor, and in a training that resumes what was read: the checkpoint that the one before
    it wrote."""
    steps = run.training.steps
    if run.training.level == 1:
        saved = [one for _, one in run.noted("saved", CheckpointFiles)]
        yield _files(WRITTEN, saved, f"global_step_{steps}")
    if run.training.resumes:
        loaded = [one for _, one in run.noted("loaded", CheckpointFiles)]
        written = run.before.written() if run.before else []
        yield _files(READ, loaded, f"global_step_{steps - 1}", written)
        yield _resume(run, written)
    if run.training.same_as:
        yield _same_step(run)


def _is_one_of(path: str, written: Sequence[str]) -> bool:
    """verl names its checkpoints from its own directory here, from the root there."""
    return any(
        f"/{path}".endswith(f"/{one.strip('/')}") or f"/{one}".endswith(f"/{path.strip('/')}") for one in written
    )


def _files(name: str, records: Sequence[CheckpointFiles], step: str, written: Sequence[str] = ()) -> Criterion:
    """While a checkpoint is written, another rank or a thread may still have to fill a file, so that only an error
    contradicts it; a file that is empty when it is read stays so. A line of the log is no file."""
    if not records:
        return not_seen(name, "no process noted one", "", SEE_PROBE)
    actor = [one for one in records if one.is_actor]
    others = [one for one in actor if f"/{step}/" not in one.path or (written and not _is_one_of(one.path, written))]
    sizes: dict[str, int] = {}
    for one in records:
        for file, size in one.files.items():
            sizes[f"{one.path}/{file}"] = max(size, sizes.get(f"{one.path}/{file}", 0))
    empty = [f"{file} is empty" for file, size in sorted(sizes.items()) if not size and file.endswith(_CONTENT)]
    wrong = [f"{one.path}: {one.error}" for one in records if one.error]
    if not actor:
        wrong.append(f"none of the actor, only {records[0].path}")
    if others and (name == READ or len(others) == len(actor)):
        wrong.append(f"{others[0].path} is not {written[-1] if written else f'of {step}'}")
    if wrong or (empty and name == READ):
        return contradicted(name, [*wrong, *empty][0], follow_up=_CHECKPOINT_FIX)
    if empty or not sizes:
        return not_seen(name, [*empty, f"{records[0].path} has no file"][0], "", _CHECKPOINT_FIX)
    return shown(name, f"{counted(len(sizes), 'file')}, {sum(sizes.values()):,} bytes", actor[0].path)


def _resume(run: TrainingRun, written: Sequence[str]) -> Criterion:
    facts, step = run.facts, run.training.steps - 1
    line, scratch = facts.said.get("resumed"), facts.said.get("scratch")
    again = [done for done in facts.metrics if 0 < done <= step]
    if scratch is not None:
        return contradicted(RESUME, scratch.text, scratch.place, _NOT_LOADED)
    if again:
        return contradicted(RESUME, f"it trained global step {again[0]} again: nothing was loaded", "", _NOT_LOADED)
    if line is None:
        return not_seen(RESUME, "no line says from which checkpoint", "", _NOT_LOADED)
    above, _, name = line.value.rpartition("/")
    if name != f"global_step_{step}":
        return contradicted(RESUME, f"it resumed from {line.value}, not global step {step}", line.place, _NOT_LOADED)
    directory = str(facts.settings.get("trainer.default_local_dir", above)).removeprefix("./")
    if not _is_one_of(above, [directory]) or (written and not _is_one_of(f"{line.value}/actor", written)):
        text = f"it resumed from {line.value}, which the training before it did not write"
        return contradicted(RESUME, text, line.place, _NOT_LOADED)
    return shown(RESUME, f"resumed at global step {step}", line.place)


def _same_step(run: TrainingRun) -> Criterion:
    """Whether the last step is what it was in the training that was resumed before it, by the tensors after it. After
    another rollout they cannot be compared: sampling begins again in a new process."""
    step, resumed = run.training.steps, run.before.facts if run.before else run.facts
    mine, theirs = (
        {name: repr(value) for name, value in facts.metrics.get(step, {}).items() if _OF_TENSORS.search(name)}
        for facts in (run.facts, resumed)
    )
    own, others = (
        {path: digest for path, digest in facts.files.items() if _TENSORS.search(path)}
        for facts in (run.facts, resumed)
    )
    changed = sorted(path for path in own if own[path] != others.get(path))
    if not own or own.keys() != others.keys():
        return not_seen(SAME, "the files of its tensors were not seen", optional=True)
    if mine != theirs:
        return not_seen(SAME, "other metrics: sampling differs, and tensors cannot be compared then", optional=True)
    if changed:
        text = f"equal metrics, but {len(changed)} of {len(own)} files of tensors differ, such as {changed[0]}"
        return not_seen(SAME, text, "", "see whether the optimizer's state was saved and read back")
    return shown(SAME, f"equal metrics of global step {step}, and {counted(len(own), 'file')} of tensors by SHA-256")
