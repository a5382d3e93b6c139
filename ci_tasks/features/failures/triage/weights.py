"""What each feature of a line is worth: numbers that `bench/triage_train.py` learned, by the features' names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass

_TABLES = ("ranking", "blocked", "confidence")


@dataclass(frozen=True)
class Weights:
    """`ranking` is for the reason's line, `blocked` for whether the environment is at fault, `confidence` for whether
    line and verdict are right. `least_confidence` is that from which on a line is named, `least_blocked` the
    probability from which on a verdict is blocked."""

    ranking: Mapping[str, float]
    blocked: Mapping[str, float]
    confidence: Mapping[str, float]
    least_confidence: float
    least_blocked: float


def parse_weights(data: Any) -> Weights:
    """The content of a weights.json. Raises ValueError, KeyError, TypeError, AttributeError where it is none."""
    ranking, blocked, confidence = (
        {str(name): float(value) for name, value in data[table].items()} for table in _TABLES
    )
    return Weights(ranking, blocked, confidence, float(data["least_confidence"]), float(data["least_blocked"]))


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
