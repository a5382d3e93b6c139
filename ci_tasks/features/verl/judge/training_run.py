"""A training that began, and all that is known of it: what its criteria are judged on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.probe.evidence import ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.attribution import DENSE_MODEL, UNCLEAR, Attribution, attribute
from ci_tasks.features.verl.judge.noted import BuiltModel, SavedFiles, noted
from ci_tasks.features.verl.judge.settings import AskedSetting, Settings, asked_settings
from ci_tasks.features.verl.judge.training_log import QuotedLine, TrainingFacts
from ci_tasks.features.verl.levels.levels import DEFAULT_MODEL, LevelRequest, Training

RERUN_AS_ASKED = "rerun with what was asked for active in the resolved settings"
SEE_PROBE = "rerun with the probe, whose hooks show what verl does not print"


@dataclass(frozen=True)
class TrainingRun:
    """A training that began, and all that is known of it. `facts` have what its processes noted; `evidence` is that of
    its processes, None without the probe; `root` is the Bridge checkout as the job sees it, "" where it is not known.
    `saved` are the actor's checkpoints that the training before it noted or named; `plain` are the proofs that level 0,
    where the feature is not active, has as well; `resumed` is the training whose last step it repeats."""

    training: Training
    facts: TrainingFacts
    request: LevelRequest
    root: str = ""
    evidence: RunEvidence | None = None
    saved: tuple[str, ...] = ()
    plain: Mapping[str, QuotedLine] = field(default_factory=dict)
    resumed: TrainingFacts | None = None

    @property
    def asked(self) -> dict[str, AskedSetting]:
        return asked_settings(self.training)

    @property
    def models(self) -> list[tuple[ProcessEvidence, BuiltModel]]:
        """Those in a wrapper for data parallelism, which are trained."""
        return [(process, model) for process, model in noted(self.evidence, BuiltModel) if model.wrapper]

    def written(self) -> tuple[str, ...]:
        """Directories of the actor's checkpoints, as the hook noted them, else as the log names them."""
        paths = [one.path for _, one in noted(self.evidence, SavedFiles) if is_actor(one.path)]
        line = self.facts.said.get("saved")
        return tuple(paths) or ((f"{line.value}/actor",) if line else ())

    def attribution(self) -> Attribution | None:
        """Of what ended it; None where it ended well, or nothing says why it did not."""
        error = self.facts.error
        if self.facts.exit_code == 0 and error is None:
            return None
        began = self.facts.constructed(error.line_no if error else 0)
        reward = (self.request.reward_model, self.training.env.get("RM_MODEL_PATH", ""))
        found = attribute(error, began, self.root, reward)
        dense = self.request.model_id in ("", DEFAULT_MODEL) and not (
            self.request.model_path or self.request.dummy_config
        )
        return Attribution(found.stage, UNCLEAR, began) if found.stage is DENSE_MODEL and not dense else found


def has_critic(settings: Settings) -> bool:
    return bool(settings.get("algorithm.adv_estimator") == "gae")


def is_actor(path: str) -> bool:
    return path.rstrip("/").endswith("/actor")
