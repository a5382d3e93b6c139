"""Two sides → everything that differs between them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.features.difference.causes import likely_causes
from ci_tasks.features.difference.inputs import compare_inputs
from ci_tasks.features.difference.outputs import compare_outputs
from ci_tasks.features.difference.result import RunDifference, RunSide


def compare_runs(
    old: RunSide,
    new: RunSide,
    *,
    changed_files: Sequence[str] = (),
    commits: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> RunDifference:
    """`changed_files` and `commits` are those between the two commits, as far as the repository is here."""
    inputs, same, not_seen = compare_inputs(old, new)
    outputs = compare_outputs(old, new)
    return RunDifference(
        old=old.id,
        new=new.id,
        inputs=inputs,
        outputs=outputs,
        causes=likely_causes(old, new, inputs, outputs, changed_files),
        same=same,
        not_seen=not_seen,
        commits=tuple(commits),
        notes=tuple(notes),
    )
