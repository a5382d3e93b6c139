"""Level 1's checkpoints, as the probe's hook saw them written and read, and what a resume made of them. Pure.

Files and sizes contradict a checkpoint, and show no more than that it was there. Tensors are judged by the bytes of
their files after a step that was resumed, and after the same one without an interruption."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from ci_tasks.errors import counted
from ci_tasks.features.verl.judge.hook_records import LoadedCheckpoint, SavedFiles
from ci_tasks.features.verl.judge.log_records import TrainingFacts
from ci_tasks.features.verl.judge.training_run import TrainingRun
from ci_tasks.features.verl.levels.criterion import Criterion, contradicted, not_seen, shown

WRITTEN, READ = "checkpoint files written", "checkpoint files read"
_CONTENT = (".json", ".safetensors", ".distcp", ".pt", ".pth", ".bin")  # a file of these that is empty holds nothing
SAME = "same step as without an interruption"
# Of a step: those that its tensors decide, and not its clock.
_METRICS = re.compile(r"^(?:actor|critic|prompt_length|response_length|val-core)/(?!.*mfu)")
# Random states and the data's position are none of the model's.
_TENSORS = re.compile(r"^(?!(?:.*/)?extra[/_]|data).*(?:\.(?:safetensors|distcp|pth?|bin)|model\.json)$")
_FIX = "checkpoint fix: see what the save wrote, and rerun level 1"


def checkpoint_files(run: TrainingRun) -> Iterator[Criterion]:
    """What was written, and in a training that resumes what was read, which has to be of the step before. While a
    checkpoint is written, another rank or a thread may still have to fill a file, so that only an error contradicts it;
    a file that is empty when it is read stays so. A line of the log is no file: without the hook nothing is shown."""
    both: tuple[tuple[str, Sequence[SavedFiles | LoadedCheckpoint]], ...]
    both = ((WRITTEN, run.hooked.saved), *([(READ, run.hooked.loaded)] if run.training.resumes else []))
    step = f"global_step_{run.training.steps - 1}"  # a directory's name
    for name, records in both:
        if not records:
            yield not_seen(name, "no process noted one", "rerun with the probe, in an environment that it can see")
            continue
        sizes: dict[str, int] = {}
        for record in records:
            for file, size in record.files.items():
                sizes[f"{record.path}/{file}"] = max(size, sizes.get(f"{record.path}/{file}", 0))
        errors = [f"{record.path}: {record.error}" for record in records if record.error]
        empty = sorted(file for file, size in sizes.items() if not size and file.endswith(_CONTENT))
        bare = [record.path for record in records if not any(file.startswith(f"{record.path}/") for file in sizes)]
        if errors:
            yield contradicted(name, errors[0], follow_up=_FIX)
        elif name == READ and (other := [record.path for record in records if step not in record.path.split("/")]):
            yield contradicted(name, f"{other[0]} is not of {step}", follow_up=_FIX)
        elif empty and name == READ:
            yield contradicted(name, f"{empty[0]} is empty", follow_up=_FIX)
        elif empty or bare:
            yield not_seen(name, f"{empty[0]} is empty" if empty else f"{bare[0]} has no file", _FIX)
        else:
            yield shown(name, f"{len(sizes)} files, {sum(sizes.values()):,} bytes", records[0].path)


def same_step(run: TrainingRun, resumed: TrainingFacts | None) -> Criterion:
    """Whether the last step is what it was in the training that was resumed before it. Equal metrics show that the
    rollouts were the same, and of the optimizer nothing, whose state first shows in the tensors after the step. Other
    metrics show nothing: sampling begins anew in a new process."""
    step = run.training.steps
    mine, theirs = _metrics(run.facts, step), _metrics(resumed, step)
    common = sorted(mine.keys() & theirs.keys())
    if not common:
        return not_seen(SAME, f"no metrics of global step {step} in both", optional=True)
    differ = [name for name in common if mine[name] != theirs[name] and not math.isnan(mine[name] + theirs[name])]
    if differ:
        first = differ[0]
        text = (
            f"{len(differ)} of {len(common)} metrics differ, such as {first}: {theirs[first]:.6g} and {mine[first]:.6g}"
        )
        return not_seen(SAME, f"{text}; sampling may, and tensors cannot be compared then", optional=True)
    equal = f"all {len(common)} metrics of global step {step} are equal"
    own, others = _tensors(run.facts), _tensors(resumed)
    if not own or own.keys() != others.keys():
        return not_seen(SAME, f"{equal}, but the files of its tensors were not seen", optional=True)
    changed = sorted(path for path in own if own[path] != others[path])
    if changed:
        text = f"{equal}, but {len(changed)} of {len(own)} files of tensors differ after it, such as {changed[0]}"
        return not_seen(SAME, text, "see whether the optimizer's state was saved and read back")
    files = f"{counted(len(own), 'file')} of tensors"
    return shown(SAME, f"{equal}, and {files} after it, by SHA-256")


def _metrics(facts: TrainingFacts | None, step: int) -> Mapping[str, float]:
    values = facts.metrics.get(step, {}) if facts is not None else {}
    return {name: value for name, value in values.items() if _METRICS.search(name)}


def _tensors(facts: TrainingFacts | None) -> Mapping[str, str]:
    return {path: digest for path, digest in facts.files.items() if _TENSORS.search(path)} if facts else {}
