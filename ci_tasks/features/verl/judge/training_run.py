"""A training that began, and all that is known of it: what its criteria are judged on. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from ci_tasks.agent.probe.evidence import ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.verl.judge.attribution import Attribution, attribute
from ci_tasks.features.verl.judge.noted import BuiltModel, CheckpointFiles, noted
from ci_tasks.features.verl.judge.settings import MISSING, asked_settings
from ci_tasks.features.verl.judge.training_log import QuotedLine, TrainingFacts
from ci_tasks.features.verl.levels.levels import LevelRequest, Training

RERUN_AS_ASKED = "rerun with what was asked for active in the resolved settings"
SEE_PROBE = "rerun with the probe, whose hooks show what verl does not print"


@dataclass(frozen=True)
class TrainingRun:
    """`facts` have what its processes noted; `evidence` is that of its processes, None without the probe; `root` is the
    Bridge checkout as the job sees it, "" if it is not known. `saved` are the actor's checkpoints that the training
    before it wrote; `plain` are the proofs that level 0, without the feature, has as well; `resumed` is the training
    whose last step it repeats."""

    training: Training
    facts: TrainingFacts
    request: LevelRequest
    root: str = ""
    evidence: RunEvidence | None = None
    saved: tuple[str, ...] = ()
    plain: Mapping[str, QuotedLine] = field(default_factory=dict)
    resumed: TrainingFacts | None = None

    @property
    def asked(self) -> dict[str, str]:
        return asked_settings(self.training)

    def setting(self, name: str) -> object:
        return self.facts.settings.get(name, MISSING)

    def models(self) -> Iterator[tuple[ProcessEvidence, BuiltModel]]:
        """Those in a wrapper for data parallelism, which are trained."""
        return (pair for pair in noted(self.evidence, "model", BuiltModel) if pair[1].wrapper)

    def written(self) -> tuple[str, ...]:
        """Directories of the actor's checkpoints, as the hook noted them, else as the log names them."""
        paths = [one.path for _, one in noted(self.evidence, "saved", CheckpointFiles) if is_actor(one.path)]
        line = self.facts.said.get("saved")
        return tuple(paths) or ((f"{line.value}/actor",) if line else ())

    def attribution(self) -> Attribution | None:
        """Of what ended it; None if it ended well, or nothing says why it did not."""
        error = self.facts.error
        if self.facts.exit_code == 0 and error is None:
            return None
        began = self.facts.constructed(error.line_no if error else 0)
        reward = (self.request.reward_model, self.training.env.get("RM_MODEL_PATH", ""))
        return attribute(error, began, self.root, reward)


def has_critic(facts: TrainingFacts) -> bool:
    return facts.settings.get("algorithm.adv_estimator") == "gae"


def is_actor(path: str) -> bool:
    return path.rstrip("/").endswith("/actor")
