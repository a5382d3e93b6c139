"""A trainer's way to log metrics, one line a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class MetricFormat:
    """`words` is what RE2 finds in such a line; `read` gives its step and values, or None for any other line."""

    words: bytes
    read: Callable[[bytes], tuple[int, dict[str, float]] | None]
