"""What is known before a level runs: its trainings, and what limits what they can show: an image's tag that moves or
names another engine, and what the trees lack."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.levels.levels import LevelRequest, Training
from ci_tasks.features.verl.levels.script import command
from ci_tasks.given_values import OverlaySource
from ci_tasks.records import PlanEntry

_MEGATRON, _CORE = "3rdparty/Megatron-LM", "megatron/core"
_DATA_SCRIPT = "examples/data_preprocess/gsm8k.py"
_DUMMY_SCRIPT = "scripts/init_random_model.py"
_MOVING = re.compile(r"(?:^|[._-])(?:latest|nightly|main|master|dev|edge|stable)$", re.IGNORECASE)
_ENGINES = {"sglang": r"sglang|sgl(?![a-z])", "trtllm": r"trt-?llm|tensorrt", "vllm": r"vllm"}


def of_image(image: str, engine: str) -> Iterator[str]:
    """`engine` is the one that the trainings ask for."""
    if not image or "@sha256:" in image:
        return
    name, _, tag = image.rpartition("/")[2].partition(":")
    if not tag or _MOVING.search(tag):
        yield f"image {image} has a tag that moves: pin a release, or the digest that ran"
    named = [other for other, pattern in _ENGINES.items() if re.search(pattern, f"{name}:{tag}", re.IGNORECASE)]
    if named and engine not in named:
        yield (
            f"image {image} is one for {', '.join(named)}, and the rollout engine is {engine}: it may fail before "
            f"Bridge is constructed, which says nothing of the change; pick a tag for {engine}"
        )


def of_trees(bridge: Path, verl: Path, request: LevelRequest, overlays: Sequence[OverlaySource] = ()) -> Iterator[str]:
    """What the trees lack of what the level uses."""
    if not _has_content(bridge / _MEGATRON) and not any((Path(each.path) / _CORE).is_dir() for each in overlays):
        yield (
            f"{bridge} has an empty {_MEGATRON}: megatron.core will be that of the image, not the one that Bridge pins;"
            f" `git -C {bridge} submodule update --init {_MEGATRON}`"
        )
    if not (request.train_files and request.val_files) and not (verl / _DATA_SCRIPT).is_file():
        yield f"{verl} has no {_DATA_SCRIPT}, which prepares the data; name it by --train-files and --val-files"
    if request.dummy_config and not (verl / _DUMMY_SCRIPT).is_file():
        yield f"{verl} has no {_DUMMY_SCRIPT}, which --dummy-config needs"


@dataclass(frozen=True)
class PlannedTraining:
    """A training with all that is set for it: `command` is a line for a shell in verl's root, `steps` the global step
    that it has to reach."""

    name: str
    steps: int
    command: str


@dataclass(frozen=True)
class LevelPlanEntry(PlanEntry):
    """An entry of `verl --plan --json`. `remarks` are limitations that are known before the run."""

    trainings: tuple[PlannedTraining, ...] = ()
    remarks: tuple[str, ...] = ()


def of_trainings(trainings: Sequence[Training]) -> tuple[PlannedTraining, ...]:
    return tuple(PlannedTraining(training.name, training.steps, command(training)) for training in trainings)


def entry(planned: PlanEntry, trainings: Sequence[Training], remarks: tuple[str, ...]) -> LevelPlanEntry:
    return LevelPlanEntry(**vars(planned), trainings=of_trainings(trainings), remarks=remarks)


def describe(trainings: Sequence[Training]) -> list[str]:
    lines = ["Trainings, in this order; one that fails ends the run, and so does a level 0 whose log contradicts it:"]
    for number, planned in enumerate(of_trainings(trainings), 1):
        lines += [f"{number}. {planned.name}, to step {planned.steps}", f"   {planned.command}"]
    return lines


def _has_content(directory: Path) -> bool:
    return directory.is_dir() and any(path.name != ".git" for path in directory.iterdir())
