"""The inputs that differ, the likely cause first, each with the command that would prove it. Pure.

RULE says the order; nothing here is a probability. A command runs the new side with one input of the old one, or
searches between the two: what comes out of it is the proof, not the place in this list.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ci_tasks.features.difference.inputs import axes_of
from ci_tasks.features.difference.outputs import METRIC, TIME
from ci_tasks.features.difference.result import (
    ARGUMENTS,
    COMMIT,
    DATA,
    DEVIATIONS,
    DRIVER,
    ENV,
    GPUS,
    HOST,
    IMAGE,
    KERNEL,
    OVERLAY,
    PACKAGES,
    SUBMODULE,
    InputDifference,
    LikelyCause,
    OutputDifference,
    OverlaySide,
    RunSide,
)
from ci_tasks.records import FAILED, PASSED

RULE = (
    "first what the failure names, then code, image, packages, arguments and environment, data, and the machine; "
    "of runs that differ in time alone the machine first"
)
_CODE, _MACHINE = (COMMIT, SUBMODULE, OVERLAY), (HOST, GPUS, DRIVER, KERNEL)
_ORDER = (*_CODE, IMAGE, PACKAGES, ARGUMENTS, ENV, DATA, *_MACHINE, DEVIATIONS)
# Groups of causes (ci_tasks.logs.causes) that say which inputs a failure is about.
_BY_GROUP = {
    "gpu_memory": (GPUS, HOST),
    "host_memory": (HOST,),
    "communication": (DRIVER, HOST, GPUS),
    "dependency": (PACKAGES, IMAGE),
    "network": (HOST, ENV),
    "machine": (HOST, DRIVER, GPUS),
}
_SHORTEST_NAME = 3  # characters of a package or variable that is searched for


def likely_causes(
    old: RunSide,
    new: RunSide,
    inputs: Sequence[InputDifference],
    outputs: Sequence[OutputDifference],
    changed_files: Sequence[str] = (),
) -> tuple[LikelyCause, ...]:
    """One for each axis that differs, in the order of RULE. `changed_files` are those that differ between the two
    commits. No cause where nothing that came out differs."""
    if not outputs:
        return ()
    failed = next((run for run in (new, old) if run.triage is not None and run.status != PASSED), None)
    is_slower = old.status == new.status and all(output.kind == TIME for output in outputs)
    ranked = []
    for axis in axes_of(inputs):
        named = _named(axis, failed, [each for each in inputs if each.axis == axis], changed_files) if failed else ""
        why = named or ("only times differ" if is_slower and axis in _MACHINE else _why(axis, inputs, outputs))
        first = 0 if named else 1 if is_slower and axis in _MACHINE else 2
        ranked.append((first, _place(axis), LikelyCause(axis, why, proof(axis, old, new))))
    return tuple(cause for _, _, cause in sorted(ranked, key=lambda each: each[:2]))


def proof(axis: str, old: RunSide, new: RunSide) -> str:
    """The command that runs the new side with this input of the old one; "" where no option sets it alone."""
    if not new.label or not new.row or new.label.startswith("-"):
        return ""
    if (old.label, old.row) != (new.label, new.row):
        return ""  # what another row gave with it says nothing
    if not all(overlay.path for overlay in new.overlays.values()):
        return ""
    others = {name: overlay for name, overlay in new.overlays.items() if f"{OVERLAY}{name}" != axis}
    row = f"{shlex.quote(new.label)} --only {shlex.quote(new.row)}{_with(others)}"
    here = f" --host {shlex.quote(new.host)}" if new.host else ""
    rev = f" --rev {new.commit}" if new.commit else ""
    if axis == COMMIT and new.dirty and old.commit:
        return f"ci-tasks compare {row} --base {old.commit}{here}"
    broke = (old.status, new.status) == (PASSED, FAILED)
    if axis == COMMIT and old.commit and new.commit:
        if broke:
            return f"ci-tasks bisect {row} --good {old.commit} --bad {new.commit}{here}"
        return f"ci-tasks remote{here} {row} --rev {old.commit}" if here else ""
    if axis.startswith(SUBMODULE) and old.commit and new.commit and broke:
        return f"ci-tasks bisect {row} --axis {shlex.quote(axis)} --good {old.commit} --bad {new.commit}{here}"
    if axis.startswith(OVERLAY):
        return _overlay_proof(axis.removeprefix(OVERLAY), old, new, row, f"{here}{rev}")
    if axis == IMAGE and old.image:
        return f"ci-tasks remote{here} {row}{rev} --image {shlex.quote(old.image)}"
    if axis in _MACHINE and old.host and old.host != new.host:
        return f"ci-tasks remote --host {shlex.quote(old.host)} {row}{rev}"
    return ""


def _with(overlays: Mapping[str, OverlaySide]) -> str:
    words: list[str] = []
    for name, overlay in overlays.items():
        words += [
            "--with",
            f"{name}={overlay.path}",
            *(["--build", f"{name}={overlay.build}"] if overlay.build else []),
        ]
    return "".join(f" {shlex.quote(word)}" for word in words)


def _overlay_proof(name: str, old: RunSide, new: RunSide, row: str, where: str) -> str:
    """The search of an overlay's commits, or the row without the overlay where the old side had none; "" where a side
    had uncommitted changes."""
    overlay = new.overlays.get(name)
    if overlay is None:
        return ""
    if name not in old.overlays:
        return f"ci-tasks remote {row}{where}" if new.host else ""
    good, bad = old.overlays[name].commit, overlay.commit
    if not good or not bad or good == bad or (old.status, new.status) != (PASSED, FAILED):
        return ""
    axis = shlex.quote(f"{OVERLAY}{name}")
    return f"ci-tasks bisect {row} --axis {axis}{_with({name: overlay})} --good {good} --bad {bad}{where}"


def _named(axis: str, failed: RunSide, inputs: Sequence[InputDifference], changed_files: Sequence[str]) -> str:
    """Why the failure is about this axis; "" where it does not say so."""
    assert failed.triage is not None
    triage = failed.triage
    text = "\n".join((triage.line, triage.reason, *triage.frames))  # lines around it name what they like
    if axis == COMMIT and (file := _changed_file(failed, changed_files)):
        return f"the failure is in {file}, which differs"
    if axis.startswith((SUBMODULE, OVERLAY)) and axis.partition(":")[2] in text:
        return f"the failure names {axis.partition(':')[2]}"
    if axis in (PACKAGES, ENV):
        for each in inputs:
            if len(each.name) >= _SHORTEST_NAME and _has_word(text, each.name):
                return f"the failure names {each.name}"
    if axis in _BY_GROUP.get(triage.group, ()):
        return f"the failure is about {triage.group.replace('_', ' ')}"
    return ""


def _changed_file(failed: RunSide, changed_files: Sequence[str]) -> str:
    evidence = failed.failure
    files = [evidence.source_path, evidence.file] if evidence else []
    files += [frame.rpartition(":")[0] for frame in failed.triage.frames] if failed.triage else []
    named = [file for file in files if file]
    return next(
        (
            changed
            for changed in changed_files
            for file in named
            if f"/{file}".endswith(f"/{changed}") or f"/{changed}".endswith(f"/{file}")
        ),
        "",
    )


def _has_word(text: str, name: str) -> bool:
    spelled = "[-_.]".join(map(re.escape, re.split("[-_.]", name)))  # PEP 503: they are one name
    return re.search(rf"(?i)(?<![\w-]){spelled}(?![\w-])", text) is not None


def _why(axis: str, inputs: Sequence[InputDifference], outputs: Sequence[OutputDifference]) -> str:
    if axis == IMAGE and any(each.axis == PACKAGES for each in inputs):
        return "it differs, and packages with it"
    first = min((output.step for output in outputs if output.kind == METRIC and output.step is not None), default=None)
    return f"it differs; metrics part at step {first}" if first is not None else "it differs"


def _place(axis: str) -> int:
    name = next((prefix for prefix in (SUBMODULE, OVERLAY) if axis.startswith(prefix)), axis)
    return _ORDER.index(name)
