"""Two sides → what went in differently, what came out differently, and which input may be the cause.

`old` is the earlier state, `new` the one that is asked about. Metrics of one step are compared bit for bit. Whether a
difference is more than scatter is not decided here: one run of a side shows none.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import find_repository
from ci_tasks.errors import CheckoutError
from ci_tasks.features.difference import sides
from ci_tasks.features.difference.sides import COMMIT, ENV, IMAGE, OVERLAY, PACKAGES, SUBMODULE, RunSide
from ci_tasks.features.difference.values import NOT_SEEN, compare_values
from ci_tasks.known_secrets import MASK, is_private
from ci_tasks.records import FAILED, PASSED

RULE = (
    "first what the failure names, then code, image, packages, arguments and environment, mounts, and the machine; "
    "of runs that differ in time alone the machine first"
)
STATUS, FAILURE, METRIC, TIME, MEMORY = "status", "failure", "metric", "time", "memory"
NO_VALUE = "–"  # a name that one side does not have
_MACHINE = (sides.HOST, sides.GPUS, sides.DRIVER, sides.KERNEL)
_ORDER = (COMMIT, SUBMODULE, OVERLAY, IMAGE, PACKAGES, sides.ARGUMENTS, ENV, sides.MOUNTS, *_MACHINE, sides.DEVIATIONS)
_SHORTEST_NAME = 3  # characters of a package or variable that is searched for in a failure
_LEAST_SECONDS, _LEAST_CHANGE = 1.0, 0.05  # relative, of time and memory: less is no difference
_MOST_COMMITS = 20


@dataclass(frozen=True)
class InputDifference:
    """`axis` is one of those in `sides`; `name` is the package, variable or file."""

    axis: str
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class OutputDifference:
    """`kind` is status, failure, metric, time or memory. `step` is the first at which a metric's values differ, `note`
    by how much."""

    kind: str
    name: str
    old: str
    new: str
    step: int | None = None
    note: str = ""


@dataclass(frozen=True)
class LikelyCause:
    """An axis that differs, why it stands where it does, and the command whose result would prove it."""

    axis: str
    why: str
    proof: str


@dataclass(frozen=True)
class RunDifference:
    """Two runs side by side. `same` are axes that were seen on both sides and are equal; `not_seen` has a line for
    those that one side, or both, did not show. `commits` are those between the two, newest first."""

    old: str
    new: str
    inputs: tuple[InputDifference, ...] = ()
    outputs: tuple[OutputDifference, ...] = ()
    causes: tuple[LikelyCause, ...] = ()
    same: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def compare_runs(old: RunSide, new: RunSide) -> RunDifference:
    """With what their repository has between the two commits."""
    is_other_row = (old.label, old.row) != (new.label, new.row)
    notes = [f"two rows: {old.label} {old.row}, and {new.label} {new.row}"] if is_other_row else []
    commits, files, submodules = list[str](), [*new.dirty, *old.dirty], list[InputDifference]()
    if old.head and new.head and old.repository and old.head != new.head:
        try:
            commits, changed, submodules = _between(old, new)
            files += changed
        except (CheckoutError, OSError) as error:
            notes.append(f"the commits between the two were not read: {error}")
    found, same, not_seen = compare_inputs(old, new)
    inputs = sorted([*found, *submodules], key=lambda each: _place(each.axis))
    outputs = tuple(compare_outputs(old, new))
    causes = likely_causes(old, new, inputs, outputs, files)
    return RunDifference(old.id, new.id, tuple(inputs), outputs, causes, same, not_seen, tuple(commits), tuple(notes))


def _between(old: RunSide, new: RunSide) -> tuple[list[str], list[str], list[InputDifference]]:
    """The commits, the files that changed, and the submodules that did. Raises CheckoutError."""
    repository = find_repository(Path(old.repository))
    if repository is None:
        return [], [], []
    commits = repository.git.text("log", "--format=%h %s", f"-n{_MOST_COMMITS}", f"{old.head}..{new.head}")
    raw = repository.git.null_separated("diff", "--raw", "--no-renames", "--abbrev=40", "-z", old.head, new.head)
    changes = [(path, info[1:].split()) for info, path in zip(raw[::2], raw[1::2], strict=False)]
    submodules = [
        InputDifference(f"{SUBMODULE}{path}", "commit", words[2][:12], words[3][:12])
        for path, words in changes
        if "160000" in words[:2]
    ]
    return commits.splitlines(), [path for path, _ in changes], submodules


# -- what went in ------------------------------------------------------------------------------------------------------


def compare_inputs(old: RunSide, new: RunSide) -> tuple[tuple[InputDifference, ...], tuple[str, ...], tuple[str, ...]]:
    """The differences by axis, the axes that are the same, and a line for what a side, or both, did not show."""
    found: list[InputDifference] = []
    same: list[str] = []
    not_seen: list[str] = []
    for axis in sorted({*_ORDER, *old.inputs, *new.inputs} - {SUBMODULE, OVERLAY}, key=_place):
        first, second = _values(old, axis), _values(new, axis)
        if first is None or second is None:
            unseen = [run.id for run, values in ((old, first), (new, second)) if values is None]
            not_seen.append(f"{axis} of {' and '.join(unseen)}")
            continue
        hidden = len(found)
        is_partial = False
        for name in {**first, **second}:
            absent = NOT_SEEN if old.from_ci or new.from_ci else NO_VALUE  # CI's log shows some names of an axis only
            before, after = first.get(name, absent), second.get(name, absent)
            is_partial |= NOT_SEEN in (before, after)
            if NOT_SEEN not in (before, after) and not _is_equal(axis, before, after):
                found.append(InputDifference(axis, name, *_shown(axis, name, before, after)))
        if is_partial and axis != COMMIT:  # a log has no hash of its tree
            not_seen.append(f"a part of {axis}")
        elif len(found) == hidden:
            same.append(axis)
    return tuple(found), tuple(same), tuple(not_seen)


def _values(run: RunSide, axis: str) -> Mapping[str, str] | None:
    """A side whose code is known has the overlays that it names, and no others."""
    return run.inputs.get(axis, {} if axis.startswith(OVERLAY) and COMMIT in run.inputs else None)


def _place(axis: str) -> tuple[int, str]:
    return next(at for at, name in enumerate(_ORDER) if axis.startswith(name)), axis


def _is_equal(axis: str, old: str, new: str) -> bool:
    """A digest names an image, whatever the tag or the mirror before it. Of a package from a work tree the commit is
    seen only where a process imported it."""
    if axis == IMAGE and "@" in old and "@" in new:
        return old.partition("@")[2] == new.partition("@")[2]
    is_package = axis == PACKAGES and (old.startswith(f"{new} (git ") or new.startswith(f"{old} (git "))
    return is_package or old == new


def _shown(axis: str, name: str, old: str, new: str) -> tuple[str, str]:
    """Of what may be a secret only that it differs: a comparison is shown to others."""
    if axis != ENV or not (is_private(name, old) or is_private(name, new)):
        return old, new
    hidden = [value if value == NO_VALUE else MASK for value in (old, new)]
    return hidden[0], f"{MASK}, another value" if hidden == [MASK, MASK] else hidden[1]


# -- what came out -----------------------------------------------------------------------------------------------------


def compare_outputs(old: RunSide, new: RunSide) -> Iterator[OutputDifference]:
    if old.status and new.status and old.status != new.status:
        yield OutputDifference(STATUS, "status", old.status, new.status)
    if (old.triage and old.triage.signature) != (new.triage and new.triage.signature):
        yield OutputDifference(FAILURE, "failure", _failure_text(old), _failure_text(new))
    drawn: set[str] = set()
    for each in compare_values("", old.metrics, "", new.metrics).differences:
        if each.name not in drawn:  # the first step
            drawn.add(each.name)
            note = _change(each.old, each.new)
            yield OutputDifference(METRIC, each.name, str(each.old), str(each.new), int(each.step), note)
    for name in [name for name in old.amounts if name in new.amounts]:
        before, after = old.amounts[name], new.amounts[name]
        kind, least = (TIME, _LEAST_SECONDS) if name.endswith(f" {sides.SECONDS}") else (MEMORY, 1.0)
        if abs(after - before) >= max(least, _LEAST_CHANGE * max(before, after)):
            yield OutputDifference(kind, name, f"{before:.4g}", f"{after:.4g}", note=_change(before, after))


def _failure_text(run: RunSide) -> str:
    if run.status == PASSED:
        return NO_VALUE
    return (run.triage.text or run.triage.line if run.triage else "") or run.reason or "not seen"


def _change(old: float | str, new: float | str) -> str:
    if isinstance(old, str) or isinstance(new, str):
        return ""
    share = (new - old) / abs(old) if old else math.inf
    return f"{share:+.2%}" if 5e-5 <= abs(share) <= 100 else f"{new - old:+.2g}"


# -- what may be the cause ---------------------------------------------------------------------------------------------


def likely_causes(
    old: RunSide,
    new: RunSide,
    inputs: Sequence[InputDifference],
    outputs: Sequence[OutputDifference],
    changed_files: Sequence[str] = (),
) -> tuple[LikelyCause, ...]:
    """One for each axis that differs, in the order of RULE. No cause where nothing that came out differs."""
    failed = next((run for run in (new, old) if run.triage is not None and run.status != PASSED), None)
    is_time_alone = old.status == new.status and all(output.kind == TIME for output in outputs)
    first = min((output.step for output in outputs if output.step is not None), default=None)
    ranked = []
    for axis in dict.fromkeys(each.axis for each in inputs) if outputs else ():
        names = [each.name for each in inputs if each.axis == axis]
        named = _named(axis, names, failed, changed_files) if failed else ""
        is_machine = is_time_alone and axis in _MACHINE
        plain = "it differs" if first is None else f"it differs; metrics part at step {first}"
        why = named or ("only times differ" if is_machine else plain)
        ranked.append(
            (0 if named else 1 if is_machine else 2, _place(axis), LikelyCause(axis, why, proof(axis, old, new)))
        )
    return tuple(cause for *_, cause in sorted(ranked, key=lambda each: each[:2]))


def _named(axis: str, names: Sequence[str], failed: RunSide, changed_files: Sequence[str]) -> str:
    """Why the failure is about this axis; "" where it does not say so."""
    triage = failed.triage
    assert triage is not None
    text = "\n".join((triage.line, triage.reason, *triage.frames))  # lines around it name what they like
    if axis == COMMIT:
        evidence = triage.evidence
        files = [evidence.source_path, evidence.file] if evidence else []
        files += [frame.rpartition(":")[0] for frame in triage.frames]
        both = [(changed, file) for changed in changed_files for file in files if file]
        changed = [a for a, b in both if f"/{b}".endswith(f"/{a}") or f"/{a}".endswith(f"/{b}")]
        if changed:
            return f"the failure is in {changed[0]}, which differs"
    if axis.startswith((SUBMODULE, OVERLAY)) and axis.partition(":")[2] in text:
        return f"the failure names {axis.partition(':')[2]}"
    for name in names if axis in (PACKAGES, ENV) else ():
        spelled = "[-_.]".join(map(re.escape, re.split("[-_.]", name)))  # PEP 503: they are one name
        if len(name) >= _SHORTEST_NAME and re.search(rf"(?i)(?<![\w-]){spelled}(?![\w-])", text):
            return f"the failure names {name}"
    return ""


def proof(axis: str, old: RunSide, new: RunSide) -> str:
    """The command that runs the new side with this input of the old one; "" where no option sets it alone, and for runs
    with overlays. What a record of others says becomes no option."""
    has_overlay = any(each.startswith(OVERLAY) for each in new.inputs)
    if has_overlay or (old.label, old.row) != (new.label, new.row) or not (new.label and new.row):
        return ""
    if new.label.startswith("-"):
        return ""
    row, host = f"{shlex.quote(new.label)} --only {shlex.quote(new.row)}", new.host or "local"
    here = f" --host {shlex.quote(host)}"
    rev = f" --rev {new.commit}" if new.commit else ""
    if axis == COMMIT and new.dirty and old.commit:
        return f"ci-tasks compare {row} --base {old.commit}{here}"
    if axis == COMMIT and old.commit and new.commit:
        if (old.status, new.status) == (PASSED, FAILED):
            return f"ci-tasks bisect {row} --good {old.commit} --bad {new.commit}{here}"
        return f"ci-tasks remote{here} {row} --rev {old.commit}"
    if axis == IMAGE and old.image:
        return f"ci-tasks remote{here} {row}{rev} --image {shlex.quote(old.image)}"
    if axis in _MACHINE and old.host and old.host != new.host:
        return f"ci-tasks remote --host {shlex.quote(old.host)} {row}{rev}"
    return ""
