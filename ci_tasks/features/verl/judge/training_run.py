"""A training that began, with all that is known of it: what its criteria are judged on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.failure_stages import DENSE_MODEL, UNCLEAR, FailureLocation, locate_failure
from ci_tasks.features.verl.judge.hooked_training import HookedTraining
from ci_tasks.features.verl.judge.log_records import LoggedFailure, QuotedLine, TrainingFacts
from ci_tasks.features.verl.judge.resolved_settings import MISSING, Settings, equals_requested
from ci_tasks.features.verl.levels.criterion import Criterion
from ci_tasks.features.verl.levels.levels import DEFAULT_MODEL, SETTINGS, LevelRequest, Training

RERUN_AS_ASKED = "rerun with what was asked for active in the resolved settings"
SEE_PROBE = "rerun with the probe, whose hooks show what verl does not print"
_REWARD_PATH = "RM_MODEL_PATH"


@dataclass(frozen=True)
class TrainingRun:
    """A training that began, and all that is known of it. `script` is its wrapper's text; `plain` are the proofs that
    level 0, where the feature is not active, has as well; `failures` are those of its log and of its processes;
    `imports` are criteria of its processes' imports; `hooked` is what the probe's hook noted; `resumed` is the training
    whose last step it repeats."""

    training: Training
    facts: TrainingFacts
    request: LevelRequest
    script: str = ""
    plain: Mapping[str, QuotedLine] = field(default_factory=dict)
    failures: tuple[LoggedFailure, ...] = ()
    imports: tuple[Criterion, ...] = ()
    hooked: HookedTraining = field(default_factory=HookedTraining)
    resumed: TrainingFacts | None = None

    @property
    def ended_well(self) -> bool:
        return self.facts.exit_code == 0 and self.facts.finished

    def location(self) -> FailureLocation | None:
        """Where it failed; None where it ended well, or nobody can see why it did not. Of a training whose exit code
        is 0 no line is the reason unless an exception or a death stands in its log: an odd word in it is none."""
        error = self.facts.error
        if self.ended_well or (self.facts.exit_code == 0 and (error is None or not self.failures)):
            return None
        paths = (self.request.reward_model, self.training.env.get(_REWARD_PATH, ""))
        located = locate_failure(error, self.facts.constructed(error.line_no if error else None), paths)
        if located.stage.name == DENSE_MODEL and not self._is_dense:
            return FailureLocation(located.stage, UNCLEAR, located.constructed)
        return located

    @property
    def _is_dense(self) -> bool:
        return self.request.model_id in ("", DEFAULT_MODEL) and not (
            self.request.model_path or self.request.dummy_config
        )


def has_critic(settings: Settings) -> bool:
    return bool(settings.get("algorithm.adv_estimator") == "gae")


def uses_peft(run: TrainingRun) -> bool:
    rank = run.facts.settings.get(SETTINGS["LORA_RANK"])
    return not equals_requested("0", run.training.env.get("LORA_RANK", "0") if rank is MISSING else rank)


def line_place(line: QuotedLine | None) -> str:
    """Where a line was seen, as a criterion has it."""
    return f"line {line.line_no}" if line is not None else ""
