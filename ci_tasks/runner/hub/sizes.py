"""Bytes, for people, and how many of a disk stay free. Pure."""

from __future__ import annotations

SPARE = 1 << 28  # bytes of a disk that are left free: others write there too


def human(count: float) -> str:
    """Bytes in the unit that people use: 3.2 GB."""
    if abs(count) < 1000:
        return "%d B" % count
    for unit in ("kB", "MB", "GB"):
        count /= 1000.0
        if abs(count) < 999.95:
            return "%.1f %s" % (count, unit)
    return "%.1f TB" % (count / 1000.0)
