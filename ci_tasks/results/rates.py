"""How often something fails, from a few runs: the interval of a rate, in numbers and in words. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil, comb, floor, fsum

ERROR = 0.05  # of a 95 % interval


@cache
def interval(failed: int, runs: int, error: float = ERROR) -> tuple[float, float]:
    """Bounds of the failure rate (Clopper and Pearson): the rates at which so many failures or more, and so many or
    fewer, happen in error / 2. No run says nothing: 0 to 1."""

    def rate(tail: Callable[[float], float], goal: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle) < goal else (low, middle)
        return low

    def at_most(rate: float, most: int) -> float:
        return fsum(comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(most + 1))

    low = rate(lambda p: 1 - at_most(p, failed - 1), error / 2) if failed else 0.0
    high = rate(lambda p: 1 - at_most(p, failed), 1 - error / 2) if failed < runs else 1.0
    return low, high


def percents(bounds: tuple[float, float]) -> tuple[int, int]:
    """The bounds in whole percent, rounded outwards: what is printed is never narrower than what is known."""
    low, high = (round(100 * bound, 6) for bound in bounds)
    return floor(low), ceil(high)


def rate_and_interval(failed: int, runs: int) -> str:
    """The rate and its 95 % interval, or `-` if nothing was tried."""
    low, high = percents(interval(failed, runs))
    return f"{100 * failed / runs:.0f} % ({low}–{high} %)" if runs else "-"
