"""Do rows fail more often on one machine, or on one GPU, than elsewhere? An exact test on the history's runs. Pure.

The rule. A row is only compared with itself: a GPU with the other GPUs of its machine, a machine with the others.
Within a row, the failures are taken as dealt to the runs at random. The probability that a GPU gets as many as it did,
or more, is then exact: a hypergeometric distribution for each row, all of them added up. What is printed is this
probability times the number of GPUs and machines that are compared (Bonferroni).

Code breaks, and then every run fails until it is mended, mostly on the machine of whoever mends it. So what counts is
- each run of code on which its row has passed before, and
- for GPUs also the first run of other code, where the run of its row before that passed. Locks deal out the GPUs of a
  machine, whatever the code is. These two kinds are not compared with each other.
Whether a run counts is known before it begins, so that running a failure again elsewhere blames nobody. What is worse
is named from SUSPECT on; `bench/machines.py` measures how often that is wrong over a year of looks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.records import MachineTally
from ci_tasks.results.rates import wilson

SUSPECT = 0.01  # the corrected probability from which on a machine is named
_NEWEST = 400  # counted runs of a row on which it is compared

Unit = tuple[str, str]  # a machine, and the UUID of one of its GPUs; "" for the machine as a whole
RowName = tuple[str, str]  # label and row


@dataclass(frozen=True)
class MachineRun:
    """A run that passed or failed on a machine, with its GPUs: {UUID: index}."""

    at: float
    row: RowName
    tree: str
    machine: str
    gpus: Mapping[str, int]
    failed: bool
    driver: str = ""


@dataclass(frozen=True)
class Suspect:
    """GPUs that were always used together, or a machine (then without GPUs), on which rows fail too often."""

    machine: str
    gpus: Mapping[str, int]
    p: float

    @property
    def name(self) -> str:
        if not self.gpus:
            return self.machine
        indexes = sorted(self.gpus.values())
        return f"GPU{'s' if len(indexes) > 1 else ''} {', '.join(map(str, indexes))} of {self.machine}"

    def is_in(self, run: MachineRun) -> bool:
        if self.machine != run.machine:
            return False
        return not self.gpus or any(uuid in run.gpus for uuid in self.gpus)


@dataclass(frozen=True)
class _Test:
    """A unit's counted runs, how many of them failed, the share that failed of the same rows elsewhere, and the
    probability of so many failures by chance. These two are None where no row can be compared."""

    runs: int
    failed: int
    elsewhere: float | None
    p: float | None


_NO_TEST = _Test(0, 0, None, None)


@dataclass(frozen=True)
class CountedRun:
    """A run on which machines are compared. `proven`: its row had passed on its tree."""

    run: MachineRun
    proven: bool


def counted(runs: Iterable[MachineRun]) -> list[CountedRun]:
    """The runs that count, in order of time."""
    row_failed: dict[RowName, bool] = {}
    tree_passed: dict[tuple[RowName, str], bool] = {}
    kept: dict[RowName, list[CountedRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.at):
        tree = (run.row, run.tree)
        proven = bool(run.tree) and tree_passed.get(tree, False)
        is_first = not run.tree or tree not in tree_passed
        if proven or (is_first and not row_failed.get(run.row)):
            kept[run.row].append(CountedRun(run, proven))
        row_failed[run.row] = run.failed
        tree_passed[tree] = proven or not run.failed
    return sorted((one for several in kept.values() for one in several[-_NEWEST:]), key=lambda one: one.run.at)


def suspects(runs: Iterable[MachineRun]) -> list[Suspect]:
    """What is worse than its peers. The worst one first; then the others are compared without its runs."""
    left, found = counted(runs), []
    while suspect := _worst(left):
        found.append(suspect)
        left = [one for one in left if not suspect.is_in(one.run)]
    return found


def tallies(runs: Sequence[MachineRun]) -> list[MachineTally]:
    tests = {unit: _NO_TEST for run in runs for unit in ((run.machine, uuid) for uuid in ("", *run.gpus))}
    tests.update(_tests(counted(runs)))
    many = sum(test.p is not None for test in tests.values())
    named = suspects(runs)
    newest = {
        uuid: (run.machine, index) for run in sorted(runs, key=lambda run: run.at) for uuid, index in run.gpus.items()
    }
    result = []
    for (machine, uuid), test in tests.items():
        own = [run for run in runs if _has(run, (machine, uuid))]
        low, high = wilson(test.failed, test.runs)
        index = newest[uuid][1] if uuid else None
        result.append(
            MachineTally(
                host=machine,
                gpu=index,
                uuid=uuid or None,
                runs=len(own),
                failed=sum(run.failed for run in own),
                counted=test.runs,
                counted_failed=test.failed,
                low=low,
                high=high,
                elsewhere=test.elsewhere,
                p=None if test.p is None else min(1.0, test.p * many),
                suspect=any(one.machine == machine and (uuid in one.gpus if uuid else not one.gpus) for one in named),
                drivers=tuple(dict.fromkeys(run.driver for run in own if run.driver)),
            )
        )
    return sorted(result, key=lambda tally: (tally.host, -1 if tally.gpu is None else tally.gpu, tally.uuid or ""))


def explain(suspect: Suspect, row: RowName, runs: Sequence[MachineRun]) -> str:
    """What a row that failed there has to know: its own runs, on the suspect and elsewhere, or those of all rows."""
    same = [run for run in runs if run.row == row]
    there = [run for run in same if suspect.is_in(run)]
    words = "this row"
    if not any(run.failed for run in there):
        there, words = [run for run in runs if suspect.is_in(run)], "rows"
        same = [run for run in runs if run.row in {one.row for one in there}]
    peers = [run for run in same if not suspect.is_in(run) and (not suspect.gpus or run.machine == suspect.machine)]
    others = "other GPUs there" if suspect.gpus else "other machines"
    share = f"{sum(run.failed for run in there)} of {len(there)}"
    chance = f"{suspect.p:.1g}" if suspect.p > 1e-9 else "less than 1e-9"
    return (
        f"{suspect.name} failed {words} {share} times, {others} {sum(run.failed for run in peers)} of {len(peers)}"
        f" (by chance: p = {chance})"
    )


def _worst(left: Sequence[CountedRun]) -> Suspect | None:
    """The unit of the lowest probability, where that is low enough. GPUs are blamed before their machines."""
    tests = _tests(left)
    many = sum(test.p is not None for test in tests.values())
    for is_gpu in (True, False):
        known = [
            (test.p * many, unit) for unit, test in tests.items() if test.p is not None and bool(unit[1]) == is_gpu
        ]
        if known and min(known)[0] <= SUSPECT:
            p, (machine, uuid) = min(known)
            return Suspect(machine, _always_with(uuid, [one.run for one in left]) if uuid else {}, p)
    return None


def _always_with(uuid: str, runs: Sequence[MachineRun]) -> dict[str, int]:
    """The GPU, and those that were used in the very same runs: which of them it is cannot be told."""
    own = [run for run in runs if uuid in run.gpus]
    together = set.intersection(*(set(run.gpus) for run in own))
    return {
        other: own[-1].gpus[other]
        for other in sorted(together)
        if all(uuid in run.gpus for run in runs if other in run.gpus)
    }


def _tests(runs: Sequence[CountedRun]) -> dict[Unit, _Test]:
    """Each GPU against the others of its machine, and each machine against the others."""
    own: dict[Unit, _Counts] = {}
    proven: dict[str, _Counts] = {}
    everywhere: _Counts = {}
    for one in runs:
        machine, key = one.run.machine, (*one.run.row, one.proven)
        for uuid in ("", *one.run.gpus):
            _count(own.setdefault((machine, uuid), {}), key, one.run.failed)
        if one.proven:
            _count(proven.setdefault(machine, {}), key, one.run.failed)
            _count(everywhere, key, one.run.failed)
    tests = {}
    for (machine, uuid), counts in sorted(own.items()):
        if uuid:
            tests[machine, uuid] = _test(counts, own[machine, ""])
        else:
            by_proven = _test(proven.get(machine, {}), everywhere)
            tests[machine, uuid] = replace(_test(counts, counts), elsewhere=by_proven.elsewhere, p=by_proven.p)
    return tests


_Stratum = tuple[str, str, bool]  # label, row, and whether the code is proven
_Counts = dict[_Stratum, list[int]]  # runs, and how many of them failed


def _count(counts: _Counts, key: _Stratum, failed: bool) -> None:
    count = counts.setdefault(key, [0, 0])
    count[0] += 1
    count[1] += failed


def _test(own: _Counts, every: _Counts) -> _Test:
    """`own` are the runs of the unit, `every` those of it and its peers."""
    distribution, seen, informative, expected, weight = [1.0], 0, False, 0.0, 0
    for row, (runs, failed) in own.items():
        all_runs, all_failed = every[row]
        if runs == all_runs:
            continue
        expected += runs * (all_failed - failed) / (all_runs - runs)
        weight += runs
        if 0 < all_failed < all_runs:
            informative = True
            seen += failed
            distribution = _added(distribution, _hypergeometric(all_runs, all_failed, runs))
    return _Test(
        sum(runs for runs, _ in own.values()),
        sum(failed for _, failed in own.values()),
        expected / weight if weight else None,
        min(1.0, math.fsum(distribution[seen:])) if informative else None,
    )


def _hypergeometric(runs: int, failed: int, drawn: int) -> list[float]:
    """The probabilities of 0, 1, … failures among `drawn` of `runs`, `failed` of which failed."""
    ways = math.comb(runs, drawn)
    return [math.comb(failed, x) * math.comb(runs - failed, drawn - x) / ways for x in range(min(failed, drawn) + 1)]


def _added(one: Sequence[float], other: Sequence[float]) -> list[float]:
    total = [0.0] * (len(one) + len(other) - 1)
    for at, p in enumerate(one):
        for more, q in enumerate(other):
            total[at + more] += p * q
    return total


def _has(run: MachineRun, unit: Unit) -> bool:
    return run.machine == unit[0] and (not unit[1] or unit[1] in run.gpus)
