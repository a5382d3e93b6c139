"""Why a run hangs, as a person reads it in a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.records import Hang
from ci_tasks.report.hang import hang_groups

_MOST_FRAMES, _MOST_REASONS = 8, 6


def hang_lines(hang: Hang, run: str, stacks: str, width: int | None = None) -> list[str]:
    """The conclusion, then who is where, then what could not be had."""
    lines = [f"{run}: {_outcome(hang)}", f"  {hang.reason}", ""]
    lines += hang_groups(hang, width)
    for culprit in hang.culprits[:3]:
        lines += _frames(hang, culprit.who)
    lines += [f"could not: {line}" for line in hang.could_not[:_MOST_REASONS]]
    more = len(hang.could_not) - _MOST_REASONS
    lines += [f"could not: {more} more"] if more > 0 else []
    return [*lines, f"all stacks: {stacks}"]


def _outcome(hang: Hang) -> str:
    return f"{hang.outcome}, {hang.kind}" if hang.kind else hang.outcome


def _frames(hang: Hang, who: str) -> Sequence[str]:
    frames = next((group.frames for group in hang.groups if group.who == who), ())
    shown = [f"  {frame}" for frame in frames[:_MOST_FRAMES]]
    return ["", f"{who}, innermost call first:", *shown, ""] if shown else []
