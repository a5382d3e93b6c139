"""Student's t: how probable a difference is by chance, from few values. Pure."""

from __future__ import annotations

import math

_STEPS = 400


def chance_of_more(mean: float, error: float, freedom: float) -> float:
    """How probable a mean as high, with this standard error, is where the true one is 0 or less."""
    if not error:
        return 0.0 if mean > 0 else 1.0
    tail = student_tails(mean / error, freedom) / 2
    return tail if mean > 0 else 1 - tail


def student_tails(t: float, freedom: float) -> float:
    """How probable it is that Student's t is further from 0 than `t`: its density, summed up (Simpson) over the angle
    atan(t / sqrt(freedom)), in which it is a power of the cosine."""
    begin = math.atan(abs(t) / math.sqrt(freedom))
    width = (math.pi / 2 - begin) / _STEPS
    heights: list[float] = [
        math.cos(min(begin + step * width, math.pi / 2)) ** (freedom - 1)
        * (1 if step in (0, _STEPS) else 4 if step % 2 else 2)
        for step in range(_STEPS + 1)
    ]
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(1.0, 2 * scale * sum(heights) * width / 3)
