"""Two sides' inputs → what differs, what is the same, and what was not seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ci_tasks.features.difference.result import (
    AXES,
    COMMIT,
    ENV,
    IMAGE,
    MOUNT,
    NO_VALUE,
    NOT_SEEN,
    OVERLAY,
    PACKAGES,
    SUBMODULE,
    InputDifference,
    RunSide,
)
from ci_tasks.known_secrets import MASK, is_private


def compare_inputs(old: RunSide, new: RunSide) -> tuple[tuple[InputDifference, ...], tuple[str, ...], tuple[str, ...]]:
    """The differences by axis, the axes that are the same, and a line for what a side, or both, did not show."""
    differences: list[InputDifference] = []
    same: list[str] = []
    not_seen: dict[str, list[str]] = {}
    partly: list[str] = []
    for axis in _axes(old, new):
        first, second = _values(old, axis), _values(new, axis)
        unseen = [run.id for run, values in ((old, first), (new, second)) if values is None]
        if first is None or second is None:
            not_seen.setdefault(" and ".join(unseen), []).append(axis)
            continue
        seen, unnamed = [], 0
        for name in [*first, *(name for name in second if name not in first)]:
            before, after = _value(old, axis, name), _value(new, axis, name)
            unnamed += NOT_SEEN in (before, after)
            if NOT_SEEN not in (before, after) and not _equal(axis, before, after):
                seen.append(InputDifference(axis, name, *_shown(axis, name, before, after)))
        differences += seen
        if unnamed and axis != COMMIT:  # a log has no hash of its tree
            partly.append(f"{unnamed} of {axis}")
        elif not seen:
            same.append(axis)
    lines = [f"{', '.join(axes)} of {ids}" for ids, axes in not_seen.items()]
    lines += [f"on one side or both: {', '.join(partly)}"] if partly else []
    return tuple(differences), tuple(same), tuple(lines)


def _values(run: RunSide, axis: str) -> Mapping[str, str] | None:
    """A side whose code is known has the overlays that it names, and no others."""
    if axis.startswith(OVERLAY) and COMMIT in run.inputs:
        return run.inputs.get(axis, {})
    return run.inputs.get(axis)


def axes_of(differences: Sequence[InputDifference]) -> list[str]:
    return list(dict.fromkeys(difference.axis for difference in differences))


def _value(run: RunSide, axis: str, name: str) -> str:
    """Mounts come from the plan, which has all of them."""
    is_partial = axis in run.partial and not name.startswith(MOUNT)
    return (_values(run, axis) or {}).get(name, NOT_SEEN if is_partial else NO_VALUE)


def _shown(axis: str, name: str, old: str, new: str) -> tuple[str, str]:
    """Of what may be a secret only that it differs: a comparison is shown to others."""
    if axis != ENV or not (is_private(name, old) or is_private(name, new)):
        return old, new
    hidden = [value if value == NO_VALUE else MASK for value in (old, new)]
    return hidden[0], f"{MASK}, another value" if hidden == [MASK, MASK] else hidden[1]


def _equal(axis: str, old: str, new: str) -> bool:
    """Of a package from a work tree the commit is seen only where a process imported it. A digest names an image,
    whatever the tag or the mirror before it."""
    if axis == IMAGE and "@" in old and "@" in new:
        return old.partition("@")[2] == new.partition("@")[2]
    if axis == PACKAGES and (old.startswith(f"{new} (git ") or new.startswith(f"{old} (git ")):
        return True
    return old == new


def _axes(old: RunSide, new: RunSide) -> list[str]:
    """Submodules and overlays that one side alone has are differences too: of the code, so they come behind it."""
    named = sorted({axis for run in (old, new) for axis in run.inputs if axis.startswith((SUBMODULE, OVERLAY))})
    return [AXES[0], *named, *AXES[1:]]
