"""`bisect` along several axes, one after the other, until one of them has the culprit; each end may be a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config
from ci_tasks.errors import UsageError, printable
from ci_tasks.features.difference.diff_runs import diff_runs
from ci_tasks.features.failures.bisection.axis import COMMIT, ENV, IMAGE, OVERLAY, PACKAGES, SUBMODULE
from ci_tasks.features.failures.bisection.bisect import bisect
from ci_tasks.features.failures.bisection.bisection import BisectionResult
from ci_tasks.records import RunRecord
from ci_tasks.results import store
from ci_tasks.results.read_record import load_record
from ci_tasks.run.events import EventStream

if TYPE_CHECKING:
    from ci_tasks.features.failures.options import BisectOptions

DIFF = "diff"  # in place of axes: those that differ, in the order of `ci-tasks diff`
_RUN = re.compile(r"\d{8}-\d{6}-.+")  # no revision looks like that


@dataclass(frozen=True)
class RunEnds:
    """Two runs of the row, of which the first is good."""

    good: RunRecord
    bad: RunRecord

    def options(self, options: BisectOptions, axis: str) -> BisectOptions:
        """Those of one axis. All other inputs are those of the bad run. Raises UsageError."""
        rev = options.rev or _clean_commit(self.bad)
        options = replace(options, axis=axis, good=self.good.id, bad=self.bad.id, rev=rev)
        digest = self.bad.environment.digest
        if axis == IMAGE:
            if not (self.good.environment.digest and digest):
                raise UsageError("the image was not seen in both runs", hint="`--images` takes a list of images")
            return replace(options, good=None, bad=None, images=f"{self.good.environment.digest},{digest}", image=None)
        options = replace(options, image=options.image or digest)
        if axis == COMMIT or axis.startswith(SUBMODULE):
            good, bad = (_commit(record, option) for option, record in (("--good", self.good), ("--bad", self.bad)))
            return replace(options, good=good, bad=bad, rev=None if axis == COMMIT else rev)
        return replace(options, first_parent=False)


def run_ends(options: BisectOptions) -> RunEnds | None:
    """The two runs that --good and --bad name; None where they name something else. Raises UsageError."""
    if not all(end and _RUN.fullmatch(end) for end in (options.good, options.bad)):
        return None
    return RunEnds(_run(options.good or "", "--good", options.only), _run(options.bad or "", "--bad", options.only))


def bisect_axes(
    axes: Sequence[str],
    options: BisectOptions,
    hosts: tuple[str, ...],
    config: Config,
    events: EventStream | None = None,
) -> BisectionResult:
    """The result of the first axis that is not ruled out. Raises UsageError where all of them are, Blocked where no
    host can go on."""
    ends = run_ends(options)
    if list(axes) == [DIFF]:
        axes = _proposed(ends, options)
    if len(axes) == 1:
        return bisect(ends.options(options, axes[0]) if ends else replace(options, axis=axes[0]), hosts, config, events)
    ruled_out = []
    for number, axis in enumerate(axes, 1):
        print(f"{'' if number == 1 else chr(10)}axis {number} of {len(axes)}: {printable(axis)}", flush=True)
        try:
            one = ends.options(options, axis) if ends else _relevant(options, axis)
            return bisect(one, hosts, config, events)
        except UsageError as problem:
            print(printable(f"axis {axis}: {problem.message}"), flush=True)
            ruled_out.append(f"{axis}: {problem.message}")
    raise UsageError(
        f"none of the axes {', '.join(axes)} has the culprit by itself", hint="\n".join(["why:", *ruled_out])
    )


def _proposed(ends: RunEnds | None, options: BisectOptions) -> tuple[str, ...]:
    if ends is None:
        raise UsageError("--axis diff needs two runs as --good and --bad", hint="`ci-tasks runs` lists them")
    result = diff_runs(ends.good.id, ends.bad.id, options.repo).difference
    axes = tuple(cause.axis for cause in result.causes) or tuple(dict.fromkeys(each.axis for each in result.inputs))
    searched = tuple(axis for axis in axes if axis in (COMMIT, IMAGE, ENV, PACKAGES) or axis.startswith(SUBMODULE))
    others = ", ".join(axis for axis in axes if axis not in searched)
    print(printable(f"axes, in the order of `ci-tasks diff`: {', '.join(searched) or 'none'}"))
    if others:
        print(printable(f"they differ in what is not searched, too: {others}"))
    if not searched:
        raise UsageError("nothing that can be searched differs between the two runs", hint="`ci-tasks diff` shows all")
    return searched


def _relevant(options: BisectOptions, axis: str) -> BisectOptions:
    """Without what is for other axes."""
    is_tree = axis == COMMIT or axis.startswith((SUBMODULE, OVERLAY))
    return replace(
        options,
        axis=axis,
        rev=None if axis == COMMIT else options.rev,
        images=options.images if axis == IMAGE else None,
        good=None if axis == IMAGE and options.images else options.good,
        bad=None if axis == IMAGE and options.images else options.bad,
        first_parent=is_tree and options.first_parent,
    )


def _commit(record: RunRecord, option: str) -> str:
    commit = _clean_commit(record)
    if not commit:
        raise UsageError(f"{option} {record.id} did not run a commit as it is", hint="name a run of a clean tree")
    return commit


def _clean_commit(record: RunRecord) -> str | None:
    """None where the run had uncommitted changes."""
    checkout = record.checkout
    return checkout.head or None if checkout is not None and not checkout.dirty else None


def _run(name: str, option: str, only: str) -> RunRecord:
    records = [load_record(run) for _, run in store.find(name)]
    chosen = [each for each in records if each.row == only] or [each for each in records if only in each.row]
    if len(chosen) != 1:
        rows = ", ".join(f"{each.id} ({each.row})" for each in records[:8])
        raise UsageError(f"{option} {name} has {len(chosen)} runs of --only {only!r}", hint=f"its runs: {rows}")
    return chosen[0]
