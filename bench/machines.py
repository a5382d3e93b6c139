"""`runs --machines`: how often is a healthy GPU or machine named, and how soon is a bad one?

Simulated fleets of 3 hosts with 8 GPUs. A dozen rows of 1, 2, 4 or 8 GPUs, some of them flaky (up to 30 %), run on the
lowest free GPUs, as the locks deal them out. Code breaks: a tree whose row fails every time, and a person who runs it
again and again, mostly on one host, until it is mended; or compares it with its base, by turns. Half of the failures
are run again elsewhere, and rows are repeated to see whether they are flaky. In an unhealthy fleet one GPU, or one
host, makes rows fail besides. Somebody looks after every twentieth run.

    python bench/machines.py [--fleets 200] [--runs 1000]

One JSON line a figure. Exit code 1 where more than 1 % of the healthy fleets had anything named at any look, or the
95 % interval holds the true rate in less than 95 % of the GPUs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.results.machines import MachineRun, Suspect, counted, interval, suspects

HOSTS, GPUS = ("h100a", "h100b", "h100c"), 8
SIZES = (1, 1, 1, 2, 2, 4, 4, 4, 4, 8, 8, 2)
LOOK = 20  # runs between two looks
MOST_FALSE = 0.01


@dataclass(frozen=True)
class Fault:
    """What makes rows fail with a probability of `rate`: a GPU's UUID, or a host."""

    rate: float = 0.0
    gpu: str = ""
    host: str = ""

    def strikes(self, run: MachineRun, luck: random.Random) -> bool:
        is_there = self.gpu in run.gpus if self.gpu else self.host == run.machine
        return is_there and luck.random() < self.rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=200)
    parser.add_argument("--runs", type=int, default=1000)
    words = parser.parse_args()
    false = tell("healthy", words, Fault())
    covered = coverage(words)
    for rate in (0.2, 0.5, 0.9):
        tell(f"a GPU that fails {rate:.0%}", words, Fault(rate, gpu="h100b/3"))
    tell("a host that fails 30%", words, Fault(0.3, host="h100b"))
    return 1 if false > MOST_FALSE or covered < 0.95 else 0


def tell(name: str, words: argparse.Namespace, fault: Fault) -> float:
    """Prints the figure. Returns in which share of the fleets something was named wrongly."""
    begun, right_at, wrong = time.monotonic(), [], 0
    for seed in range(words.fleets):
        runs, at, is_wrong = list(history(seed, words.runs, fault)), None, False
        for look in range(LOOK, len(runs) + 1, LOOK):
            for suspect in suspects(runs[:look]):
                if _is_right(suspect, fault):
                    at = at or look
                else:
                    is_wrong = True
        right_at += [at] if at else []
        wrong += is_wrong
    figure = {
        "machines": name,
        "fleets": words.fleets,
        "runs": words.runs,
        "looks": words.runs // LOOK,
        "wrongly_named": round(wrong / words.fleets, 4),
        "found": round(len(right_at) / words.fleets, 3) if fault.rate else None,
        "runs_until_found_median": median(right_at) if right_at else None,
        "seconds": round(time.monotonic() - begun, 1),
    }
    print(json.dumps(figure), flush=True)
    return wrong / words.fleets


def _is_right(suspect: Suspect, fault: Fault) -> bool:
    if suspect.gpus:
        return fault.gpu in suspect.gpus or (bool(fault.host) and suspect.machine == fault.host)
    # A GPU's host is worse than other hosts, too.
    return suspect.machine in (fault.host, fault.gpu.partition("/")[0])


def coverage(words: argparse.Namespace) -> float:
    """How often the interval of a GPU holds the rate at which its rows fail."""
    held = []
    for seed in range(words.fleets):
        luck = random.Random(seed)
        rates = _flake_rates(luck)
        own: dict[str, list[MachineRun]] = {}
        for one in counted(history(seed, words.runs, Fault(), broken=False)):
            for uuid in one.run.gpus:
                own.setdefault(uuid, []).append(one.run)
        for runs in own.values():
            low, high = interval(sum(run.failed for run in runs), len(runs))
            held.append(low <= mean(rates[int(run.row[1])] for run in runs) <= high)
    print(json.dumps({"machines": "95 % interval", "gpus": len(held), "holds": round(mean(held), 4)}), flush=True)
    return mean(held)


def history(seed: int, count: int, fault: Fault, broken: bool = True) -> Iterator[MachineRun]:
    """The runs of a year, in order."""
    luck = random.Random(seed)
    rates = _flake_rates(luck)
    home = luck.choice(HOSTS)
    done, tree = 0, 0
    while done < count:
        tree += 1
        kind = luck.random() if broken else 1.0
        row = luck.randrange(len(SIZES))
        if kind < 0.15:  # broken, run again on one host until it is mended
            plan = [(row, f"t{tree}.{at}", True, home) for at in range(1 + int(luck.expovariate(1 / 4)))]
            plan.append((row, f"t{tree}.mended", False, home))
        elif kind < 0.2:  # a change and its base by turns
            plan = [(row, f"t{tree}{'b' * (at % 2)}", at % 2 == 0, home) for at in range(10)]
        elif kind < 0.3:  # a row again and again, to see whether it is flaky
            several = HOSTS if luck.random() < 0.5 else (home,)
            plan = [(row, f"t{tree}", False, several[at % len(several)]) for at in range(9)]
        else:  # a label: some rows, on any host
            host = home if luck.random() < 0.5 else luck.choice(HOSTS)
            plan = [(each, f"t{tree}", False, host) for each in luck.sample(range(len(SIZES)), 4)]
        busy = luck.sample(range(GPUS), luck.choice((0, 0, 0, 1, 2, 4)))  # others' GPUs
        while plan:
            each, name, is_broken, host = plan.pop(0)
            size = SIZES[each]
            free = [gpu for gpu in range(GPUS) if gpu not in busy or size > GPUS - len(busy)][:size]
            bare = MachineRun(done, ("l", str(each)), name, host, {f"{host}/{gpu}": gpu for gpu in free}, False)
            failed = is_broken or luck.random() < rates[each] or fault.strikes(bare, luck)
            yield MachineRun(done, bare.row, name, host, bare.gpus, failed)
            if failed and luck.random() < 0.5:
                plan.insert(0, (each, name, is_broken, luck.choice([other for other in HOSTS if other != host])))
            if luck.random() < 0.5:
                busy = luck.sample(range(GPUS), luck.choice((0, 0, 1, 2, 4)))
            done += 1


def _flake_rates(luck: random.Random) -> list[float]:
    return [luck.choice((0.0, 0.01, 0.02, 0.05, 0.3)) for _ in SIZES]


if __name__ == "__main__":
    sys.exit(main())
