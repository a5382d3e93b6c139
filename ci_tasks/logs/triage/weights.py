"""What each feature of a line is worth: numbers that `bench/triage_train.py` learned, by the features' names. They are
read from weights.json beside this module, or from the file that CI_TASKS_TRIAGE_WEIGHTS names."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci_tasks import resources
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError

FILE = "logs/triage/weights.json"
VARIABLE = "CI_TASKS_TRIAGE_WEIGHTS"


@dataclass(frozen=True)
class Weights:
    """`ranking` is for the reason's line, `confidence` for whether line and verdict are right. `least_confidence` is
    that from which on a line is named."""

    ranking: Mapping[str, float]
    confidence: Mapping[str, float]
    least_confidence: float


def shipped_weights() -> Weights:
    """Those that ship, or those of the file that the variable names. Raises UsageError."""
    return _read(os.environ.get(VARIABLE, ""))


@functools.cache
def _read(path: str) -> Weights:
    try:
        data = json.loads(Path(path).read_text("utf-8") if path else resources.text(FILE))
        ranking, confidence = (
            {str(name): float(value) for name, value in data[table].items()} for table in ("ranking", "confidence")
        )
        return Weights(ranking, confidence, float(data["least_confidence"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path or FILE} has no weights: {error}", hint=f"{VARIABLE} names such a file") from error


def score(weights: Mapping[str, float], features: Mapping[str, float]) -> float:
    """The sum of what its features are worth."""
    return math.fsum(weights.get(name, 0.0) * value for name, value in features.items() if value)


def probability(value: float) -> float:
    """The logistic function."""
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, value))))


def probabilities(scores: Sequence[float]) -> list[float]:
    """Scores as shares of one."""
    most = max(scores, default=0.0)
    powers = [math.exp(max(-700.0, value - most)) for value in scores]
    return [power / sum(powers) for power in powers]
