"""The trainings that a test starts, each with its flags, and what they exercise in words.

Flags with a value count if `_VALUED` has them, others unless they are plumbing; each is shown as its own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.recorder.records import UNKNOWN, LaunchCall, Recording, Value, shell_split
from ci_tasks.features.suites.slime_helpers import commands_of

_SCRIPT = re.compile(r"(?:^|/)train(?:_\w+)?\.py$")
_MODULE = re.compile(r"^[\w.]+\.train(?:_\w+)?$")
_MODEL = re.compile(r"scripts/models/([^/\s]+)\.sh$")
# Short name → Megatron's flag, in the order in which they are written.
_LAYOUT = {
    "TP": "--tensor-model-parallel-size",
    "PP": "--pipeline-model-parallel-size",
    "CP": "--context-parallel-size",
    "EP": "--expert-model-parallel-size",
    "ETP": "--expert-tensor-parallel-size",
}
# Flags with a value that say what is exercised: their own words, and the value where it is a word.
_VALUED = re.compile(
    r"--(sglang-(config|moe-a2a|speculative-algorithm|disaggregation)|megatron-config|prefill-num-servers|update-weight-(mode|transport)"
    r"|rollout-(data|function)|optimizer-placement|num-critic-only|opd-type|over-sampling|dynamic-sampling|(save|load)-debug"
    r"|save$|eval-interval|multimodal|custom-|ci-(load-grad-norm|metric-checker))"
)
# Flags without a value that every training has: shapes, numerics and housekeeping.
_PLUMBING = re.compile(
    r"--(ci-|no-|sequence-parallel|apply-chat-template|rollout-shuffle|balance-data|attention-softmax|colocate"
    r"|accumulate-allreduce|sglang-enable-metrics|use-kl-loss|overlap-|use-wandb|disable-|normalize-advantages"
    r"|update-weight-disk-keep|use-dynamic-batch-size|use-opd$|offload-)"
)
_PREFIX = re.compile(r"^--(?:sglang-)?(?:use-|enable-)?")
_SWITCH = re.compile(r"^--(?:\w+-)?(?:use|enable|calculate)-")  # takes no value


@dataclass(frozen=True)
class TrainingLaunch:
    """One start of a training. `flags` are those it is given, the last of several; a value that only a run would know
    stands as ⟨its expression⟩."""

    flags: Mapping[str, tuple[str, ...]]
    model_script: Value
    script: str

    def value(self, flag: str, default: str = "") -> str:
        values = self.flags.get(flag)
        return default if values is None else " ".join(values)

    def number(self, flag: str) -> int:
        """A flag's number; 1 too if it is not a number that is known."""
        text = self.value(flag)
        return int(text) if text.isdecimal() else 1

    @property
    def hidden(self) -> bool:
        """Whether arguments that are not known may be flags: they are not the value of one."""
        return any(map(UNKNOWN.fullmatch, self.flags.get("", ())))

    @property
    def algorithm(self) -> str:
        """The advantage estimator. GRPO is the framework's default, which is not known to hold if flags are hidden."""
        return self.value("--advantage-estimator", "" if self.hidden else "grpo").upper().replace("_", "-")

    @property
    def layout(self) -> str:
        """`TP2 + CP2`; "DP" for none but data parallel."""
        sizes = {name: self.number(flag) for name, flag in _LAYOUT.items()}
        return " + ".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or ("" if self.hidden else "DP")

    @property
    def placement(self) -> str:
        """Where the engines are; "" if no flag says it."""
        flags = {
            "--rollout-external-engine-addrs": "external engines",
            "--colocate": "colocated",
            "--rollout-num-gpus": "disaggregated",
        }
        return next((words for flag, words in flags.items() if flag in self.flags), "")

    def features(self) -> Iterator[str]:
        """What it exercises besides its model, algorithm, layout and placement."""
        if "--colocate" in self.flags and not any(flag.startswith("--no-offload") for flag in self.flags):
            yield "offload/onload"  # engines that share GPUs with the trainer leave them to it
        # `--load` of what `--hf-checkpoint` names starts from the beginning.
        if "--load" in self.flags and self.value("--load") != self.value("--hf-checkpoint"):
            yield "checkpoint load"
        if "fp8" in self.value("--hf-checkpoint").lower():
            yield "FP8 rollout"
        if "async" in self.script:
            yield f"async training ({self.script})"
        spells_out_model = "--num-layers" in self.flags  # has too many switches to tell apart
        for flag, values in self.flags.items():
            if values and _VALUED.match(flag):
                value = self.value(flag)
                words = [flag[2:].removesuffix("-path"), value.rpartition(".")[2]]
                yield (" ".join(words) if value.replace(".", "").isidentifier() else words[0]).replace("-", " ")
            elif flag and not values and not spells_out_model and not _PLUMBING.match(flag):
                yield _PREFIX.sub("", flag).replace("-", " ")


def trainings(recording: Recording) -> list[TrainingLaunch]:
    """Every training, in the order in which they would start."""
    return [training for call in recording.calls for training in _started(call)]


def _started(call: LaunchCall) -> Iterator[TrainingLaunch]:
    if call.function == "execute_train":
        named, words = call.kwargs, _words(call.kwargs.get("train_args"))
        if not any(word.startswith("--") for word in words):  # a helper whose flags are words of their own
            words = [word for value in (*named.values(), *call.args) for word in _words(value)]
            named = {}
        script = str(named.get("train_script") or "train.py")
        yield TrainingLaunch(_flags(words), named.get("megatron_model_type"), script)
    for argv in commands_of(call):
        for place, word in enumerate(argv):
            if _SCRIPT.search(word) or (_MODULE.search(word) and argv[place - 1] == "-m"):
                model = next((match[1] for match in map(_MODEL.search, argv) if match), None)
                yield TrainingLaunch(_flags(argv[place + 1 :]), model, word)
                break


def _words(value: Value) -> list[str]:
    return shell_split(value) if isinstance(value, str) else [*map(str, value)] if isinstance(value, list) else []


def _flags(argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`--flag value …` and `--flag=value` → values by flag; under "" what belongs to none."""
    flags: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            flags[name] = (value,) if equals else ()
        else:
            is_own = UNKNOWN.fullmatch(word) and (flags.get(name) or _SWITCH.match(name))
            owner = "" if is_own else name
            flags[owner] = (*flags.get(owner, ()), word)
    return flags
