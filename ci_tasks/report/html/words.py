"""Numbers, times and statuses as short words."""

from __future__ import annotations

import math

SYMBOLS = {"passed": "✓", "failed": "✗", "vacuous": "∅", "blocked": "⊘", "cancelled": "■", "lost": "?"}

_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)  # seconds


def number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}".replace("-", "−")


def clock(seconds: float) -> str:
    """A length of time as short as its size allows: `4.2 s`, `2 min 05 s`, `3 h 10 min`."""
    if seconds < 99.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest:02d} s" if rest else "")
    return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if minutes % 60 else "")


def time_step(seconds: float, most: int) -> float:
    """A round length of time of which there are at most `most` in `seconds`."""
    return next((step for step in _STEPS if seconds / step <= most), None) or seconds / most


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers from `low` to `high`, some `about` of them; one where both are the same."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(at * step, 12 - math.floor(math.log10(step))) for at in range(first, last + 1)]
