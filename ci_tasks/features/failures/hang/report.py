"""Why a run hangs, as a person reads it in a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.features.failures.hang.analysis import NOT_DETERMINED, analyse_hang
from ci_tasks.records import Hang
from ci_tasks.report.triage import hang_groups
from ci_tasks.run.look import LookOfEnded

_MOST_FRAMES, _MOST_REASONS = 8, 6


_TRIGGERS = {
    "stall": "when its log was silent",
    "timeout": "before its timeout ended it",
    "request": "on request, by `hang`",
}


def ended_hang(ended: LookOfEnded) -> Hang:
    if ended.facts is not None:
        return analyse_hang(ended.facts)
    silence = f"; its log was silent for at most {ended.longest_silence:.0f} s" if ended.longest_silence else ""
    return Hang(NOT_DETERMINED, "", f"the run has ended, and no stacks were captured{silence}")


def ended_note(ended: LookOfEnded) -> str:
    """Of when that is."""
    if ended.facts is None:
        return "nothing, the run has ended"
    return f"{_TRIGGERS[ended.facts.reason]}; the run has ended since"


def hang_lines(hang: Hang, run: str, stacks: str, note: str = "", width: int | None = None) -> list[str]:
    """The conclusion, then who is where, then what could not be had. `note` says of when that is."""
    lines = [f"{run}: {_outcome(hang)}", f"  {hang.reason}", *([f"  seen: {note}"] if note else []), ""]
    lines += hang_groups(hang, width)
    for culprit in hang.culprits[:3]:
        lines += _frames(hang, culprit.who)
    lines += [f"could not: {line}" for line in hang.could_not[:_MOST_REASONS]]
    more = len(hang.could_not) - _MOST_REASONS
    lines += [f"could not: {more} more"] if more > 0 else []
    return [*lines, *([f"all stacks: {stacks}"] if hang.groups else [])]


def _outcome(hang: Hang) -> str:
    return f"{hang.outcome}, {hang.kind}" if hang.kind else hang.outcome


def _frames(hang: Hang, who: str) -> Sequence[str]:
    frames = next((group.frames for group in hang.groups if group.who == who), ())
    shown = [f"  {frame}" for frame in frames[:_MOST_FRAMES]]
    return ["", f"{who}, innermost call first:", *shown, ""] if shown else []
