"""What each feature of a line is worth, by its name: numbers of weights.json, which `bench/triage_train.py` learned."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence

from ci_tasks import resources
from ci_tasks.agent.quick_dataclass import dataclass

FILE = "logs/triage/weights.json"


@dataclass(frozen=True)
class Weights:
    """`ranking` is for the reason's line, `confidence` for whether line and verdict are right. `least_confidence` is
    that from which on a line is named."""

    ranking: Mapping[str, float]
    confidence: Mapping[str, float]
    least_confidence: float


@functools.cache
def shipped_weights() -> Weights:
    data = json.loads(resources.text(FILE))
    return Weights(data["ranking"], data["confidence"], data["least_confidence"])


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
