"""Level 1's checkpoints, as the probe's hook saw them written and read. Pure.

Nothing here judges tensors: files and sizes contradict a checkpoint, and show no more than that it was there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ci_tasks.features.verl.judge.hook_records import LoadedCheckpoint, SavedFiles
from ci_tasks.features.verl.judge.training_run import TrainingRun
from ci_tasks.features.verl.levels.criterion import Criterion, contradicted, not_seen, shown

WRITTEN, READ = "checkpoint files written", "checkpoint files read"
_CONTENT = (".json", ".safetensors", ".distcp", ".pt", ".pth", ".bin")  # a file of these that is empty holds nothing
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
