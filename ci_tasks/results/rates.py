"""How often something fails, from a few runs: the interval of a rate, in numbers and in words. Pure."""

from __future__ import annotations

import math

Z = 1.96  # standard deviations of a 95 % interval


def wilson(successes: int, n: int, z: float = Z) -> tuple[float, float]:
    """Wilson's score interval for the probability of success after `successes` in `n` tries, within 0 … 1.

    Unlike the textbook's ± it is right for few tries and for rates of 0 and 1. No try says nothing: (0, 1).
    Raises ValueError where `successes` is not in 0 … n, or `z` is not positive.
    """
    if not 0 <= successes <= n or z <= 0:
        raise ValueError(f"no such proportion: {successes} of {n}, z = {z}")
    if n == 0:
        return 0.0, 1.0
    rate, square = successes / n, z * z
    centre = (rate + square / (2 * n)) / (1 + square / n)
    half = z * math.sqrt(rate * (1 - rate) / n + square / (4 * n * n)) / (1 + square / n)
    # Exactly 0 and 1 where they belong: rounding would leave 1e-17, of which nobody can say that it is not 0.
    low = max(0.0, centre - half) if successes else 0.0
    high = min(1.0, centre + half) if successes < n else 1.0
    return low, high


def at_least(failed: int, n: int) -> str:
    """`fails at least 56 %`: all that so many failures show, rounded down."""
    return f"fails at least {math.floor(100 * wilson(failed, n)[0])} %"


def rate_and_interval(failed: int, n: int) -> str:
    """The rate and its 95 % interval, or `-` where nothing was tried."""
    low, high = wilson(failed, n)
    return f"{percent(failed / n)} ({100 * low:.0f}–{percent(high)})" if n else "-"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
