"""Which model a training has, and whether it is dense or a mixture of experts: from flags, before names."""

from __future__ import annotations

import re
from collections.abc import Callable

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.coverage.training import TrainingLaunch

SCRIPTS = "scripts/models/{}.sh"
# What a name says, where no flag does: 30B of which 3B are active, or the word itself.
_MOE_NAME = re.compile(r"(?i)\bmoe\b|\d+B[-_]A\d+B|\d+x\d+")
_WORDS = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")

Read = Callable[[str], "str | None"]


@dataclass(frozen=True)
class ModelArchitecture:
    """A model as a test trains it. `because` is what says that it is dense or a mixture of experts."""

    name: str
    moe: bool
    because: str
    mla: bool = False

    @property
    def kind(self) -> str:
        return " ".join((*(["MLA"] if self.mla else []), "MoE" if self.moe else "dense"))


def architecture(training: TrainingLaunch, name: str | None, read: Read) -> ModelArchitecture | None:
    """`name` is what the test calls its model; None where neither it nor the checkpoint has a name."""
    called = name or _from_checkpoint(training)
    if not called:
        return None
    script = SCRIPTS.format(training.model_script) if training.model_script else ""
    sourced = set(_WORDS.findall((read(script) or "") if script else ""))
    mla = "--multi-latent-attention" in training.flags or "--multi-latent-attention" in sourced
    for moe, because in (
        ("--num-experts" in training.flags, "--num-experts"),
        ("--num-experts" in sourced, f"--num-experts in {script}"),
        (training.number("--expert-model-parallel-size") > 1, "--expert-model-parallel-size"),
    ):
        if moe:
            return ModelArchitecture(called, True, because, mla)
    if sourced or "--num-layers" in training.flags:
        return ModelArchitecture(called, False, f"no --num-experts in {script or 'its flags'}", mla)
    return ModelArchitecture(called, bool(_MOE_NAME.search(called.replace("_", " "))), "its name", mla)


def _from_checkpoint(training: TrainingLaunch) -> str:
    path = training.value("--hf-checkpoint").rstrip("/")
    return "" if "⟨" in path else path.rpartition("/")[2]
