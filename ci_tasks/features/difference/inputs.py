"""Two sides' inputs → what differs, what is the same, and what was not seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ci_tasks.features.difference.result import (
    AXES,
    COMMIT,
    NO_VALUE,
    OVERLAY,
    PACKAGES,
    SUBMODULE,
    InputDifference,
    RunSide,
)


def compare_inputs(old: RunSide, new: RunSide) -> tuple[tuple[InputDifference, ...], tuple[str, ...], tuple[str, ...]]:
    """The differences by axis, the axes that are the same, and a line for what a side, or both, did not show."""
    differences: list[InputDifference] = []
    same: list[str] = []
    not_seen: dict[str, list[str]] = {}
    for axis in _axes(old, new):
        first, second = _values(old, axis), _values(new, axis)
        unseen = [run.id for run, values in ((old, first), (new, second)) if values is None]
        if first is None or second is None:
            not_seen.setdefault(" and ".join(unseen), []).append(axis)
            continue
        found = _compare(axis, first, second)
        differences += found
        if not found:
            same.append(axis)
    return tuple(differences), tuple(same), tuple(f"{', '.join(axes)} of {ids}" for ids, axes in not_seen.items())


def _values(run: RunSide, axis: str) -> Mapping[str, str] | None:
    """A side whose code is known has the overlays that it names, and no others."""
    if axis.startswith(OVERLAY) and COMMIT in run.inputs:
        return run.inputs.get(axis, {})
    return run.inputs.get(axis)


def axes_of(differences: Sequence[InputDifference]) -> list[str]:
    return list(dict.fromkeys(difference.axis for difference in differences))


def _equal(axis: str, old: str | None, new: str | None) -> bool:
    """Of a package from a work tree the commit is seen only where a process imported it."""
    if axis == PACKAGES and old and new and (old.startswith(f"{new} (git ") or new.startswith(f"{old} (git ")):
        return True
    return old == new


def _axes(old: RunSide, new: RunSide) -> list[str]:
    """Submodules and overlays that one side alone has are differences too: of the code, so they come behind it."""
    named = sorted({axis for run in (old, new) for axis in run.inputs if axis.startswith((SUBMODULE, OVERLAY))})
    return [AXES[0], *named, *AXES[1:]]


def _compare(axis: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[InputDifference]:
    names = [*old, *(name for name in new if name not in old)]
    return [
        InputDifference(axis, name, old.get(name, NO_VALUE), new.get(name, NO_VALUE))
        for name in names
        if not _equal(axis, old.get(name), new.get(name))
    ]
