"""Placement: how soon do all rows of a label end, by our `place` and by CI's own way, on 1, 2 and 4 hosts of 8 GPUs?

    python bench/schedule.py [--seeds 10] [--small 60] [--hosts 1,2,4] [--repo DIR] [--only small|labels|cost]

One JSON line a figure; exit code 1 where a goal is missed. The clock is simulated, `place` is real.
labels: the shapes of slime's labels (rows and their GPUs, or with --repo those of a checkout's workflow as it stands).
    Times are drawn, for no log of them is public: in the median 10 minutes on six or eight GPUs, 5 on four, 2 on fewer,
    spread so that two of three rows take 0.6 to 1.65 of that, and between 30 s and 45 min. `over_bound` is the makespan
    over max(longest row, GPU-seconds / GPUs), mean and worst of the seeds. Its goal, a mean of 1.10, is for labels of
    10 rows and more with right estimates. `over_optimum` is over the best there is, where that was proved.
    estimates: `right`; `off` by a factor that two of three times is between 0.74 and 1.35; `far off`: 0.55 and 1.8;
    `none`: what `prior` says of a row without history.
    network: `bridge`, rows share a host as GPUs allow; `host`, as under CI's --network host: no two rows that start Ray
    (those on four GPUs and more) share one. `over_own_bound` knows that a host then runs one of them at a time, and
    the goal is for it. It is left out for labels of which no two rows fit onto a host anyway.
    `ci_over_bound` is CI's way with 2 and with 8 runners on each host. It does not keep rows with Ray apart:
    `ci_rows_together` counts those that ran beside another on their host, where the ports of both collide.
small: 6 to 8 rows on one and two hosts, with right estimates, over the proved optimum. Goal: 1.05, of the worst too.
cost: of one decision, in milliseconds of CPU: 31 rows and 4 hosts (goal 100), 1,000 and 64 (50), idle and busy ones.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from schedule_clock import Machine, Running, Task, ci, makespan, ours, place, together
from schedule_exact import Row, TooMany, optimum

from ci_tasks.plan.schedule import prior

GPUS = 8
LABELS = {
    "megatron, image": [8] * 23 + [6] + [4] * 6 + [2],
    "ckpt": [8] * 5,
    "sglang-config": [8] * 4,
}
RAY = ("ray-host-network",)
RUNNERS = (2, 8)
ESTIMATES: dict[str, float | None] = {"right": 0.0, "off": 0.3, "far off": 0.6, "none": None}
SMALL = {"slime's": [8, 8, 8, 4, 4, 2, 6], "any": [1, 2, 3, 4, 5, 6, 7, 8], "middling": [2, 4, 4, 6]}
EXACT = 8  # rows, more are not tried to be proved
LARGE = 10  # rows from which on the bound is the goal
EXACT_GOAL, BOUND_GOAL = 1.05, 1.10


def main() -> int:
    words = arguments()
    met = True
    if words.only in ("", "small"):
        for hosts in (1, 2):
            for name, widths in SMALL.items():
                met &= tell(small(name, widths, hosts, words.small, ()))
            met &= tell(small("slime's, host network", SMALL["slime's"], hosts, words.small, RAY))
    if words.only in ("", "labels"):
        for label, widths in (read(words.repo) if words.repo else LABELS).items():
            for hosts in map(int, words.hosts.split(",")):
                for network in ("bridge", "host") if min(widths) * 2 <= GPUS else ("bridge",):
                    for estimates in ESTIMATES:
                        met &= tell(whole(label, widths, hosts, network, estimates, words.seeds))
    if words.only in ("", "cost"):
        met &= tell(cost(31, 4, 100)) & tell(cost(1000, 64, 50))
    return 0 if met else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="of each label's figures")
    parser.add_argument("--small", type=int, default=60, help="seeds of each small figure")
    parser.add_argument("--hosts", default="1,2,4")
    parser.add_argument("--repo", default="", help="a checkout whose labels to take, instead of slime's as of 2026-08")
    parser.add_argument("--only", default="", choices=("", "small", "labels", "cost"))
    return parser.parse_args()


def tell(figure: dict[str, Any]) -> bool:
    print(json.dumps(figure), flush=True)
    return bool(figure.get("met", True))


def read(repo: str) -> dict[str, list[int]]:
    """The GPUs of each row of each label that wants some, as the checkout's workflow says."""
    told = subprocess.run(
        [str(Path(sys.executable).with_name("ci-tasks")), "jobs", "--repo", repo, "--json"],
        check=True,
        capture_output=True,
    )
    labels: dict[str, list[int]] = {}
    for row in json.loads(told.stdout):
        if row["gpus"]:
            labels.setdefault(row["label"], []).append(min(row["gpus"], GPUS))
    return labels


def lengths(widths: Sequence[int], chance: random.Random) -> list[float]:
    """Seconds that rows take: see above."""
    medians = [600 if gpus > 4 else 300 if gpus == 4 else 120 for gpus in widths]
    return [min(max(median * chance.lognormvariate(0, 0.5), 30.0), 2700.0) for median in medians]


def guesses(widths: Sequence[int], seconds: Sequence[float], error: float | None, chance: random.Random) -> list[float]:
    if error is None:
        return [prior(gpus) for gpus in widths]
    return [taken * chance.lognormvariate(0, error) for taken in seconds]


def bound(widths: Sequence[int], seconds: Sequence[float], hosts: int) -> float:
    """Of the issue: the longest row, or all GPU-seconds over all GPUs."""
    work = sum(gpus * taken for gpus, taken in zip(widths, seconds, strict=True))
    return max(max(seconds), work / (GPUS * hosts))


def own_bound(widths: Sequence[int], names: Sequence[tuple[str, ...]], seconds: Sequence[float], hosts: int) -> float:
    """What rows allow of which a host runs one at a time: those on more than half of its GPUs, or with one name."""
    wide = sum(taken for gpus, taken in zip(widths, seconds, strict=True) if gpus * 2 > GPUS)
    named = sum(taken for own, taken in zip(names, seconds, strict=True) if own)
    return max(bound(widths, seconds, hosts), wide / hosts, named / hosts)


def whole(label: str, widths: Sequence[int], hosts: int, network: str, estimates: str, seeds: int) -> dict[str, Any]:
    """One label, several draws of its times."""
    names = [RAY if network == "host" and gpus >= 4 else () for gpus in widths]
    over: dict[str, list[float]] = {}
    beside = []
    for seed in range(seeds):
        chance = random.Random(f"{label} {seed}")
        seconds = lengths(widths, chance)
        guessed = guesses(widths, seconds, ESTIMATES[estimates], chance)
        tasks = [Task(str(row), gpus, guessed[row], names[row]) for row, gpus in enumerate(widths)]
        took = makespan(ours(tasks, seconds, hosts, GPUS, len(tasks)))
        least = bound(widths, seconds, hosts)
        over.setdefault("bound", []).append(took / least)
        over.setdefault("own_bound", []).append(took / own_bound(widths, names, seconds, hosts))
        best = proved(widths, names, seconds, hosts, took)
        if best is not None:
            over.setdefault("optimum", []).append(took / best)
        for runners in RUNNERS:
            spans = ci(widths, seconds, hosts, GPUS, runners, seed)
            over.setdefault(f"ci_{runners}", []).append(makespan(spans) / least)
            beside.append(together(spans, [bool(own) for own in names]))
    met = judged(len(widths), network, estimates, over)
    return {
        "figure": "label",
        "label": label,
        "rows": len(widths),
        "hosts": hosts,
        "network": network,
        "estimates": estimates,
        "seeds": seeds,
        **{f"over_{kind}": spread(over[kind]) for kind in ("bound", "own_bound", "optimum") if kind in over},
        **{f"ci_over_bound_{runners}_runners": spread(over[f"ci_{runners}"]) for runners in RUNNERS},
        **({"ci_rows_together": round(mean(beside), 1)} if network == "host" else {}),
        **({} if met is None else {"met": met}),
    }


def judged(rows: int, network: str, estimates: str, over: dict[str, list[float]]) -> bool | None:
    """Whether the goal is met, of a figure that has one."""
    if estimates != "right":
        return None
    if rows >= LARGE:
        return mean(over["bound" if network == "bridge" else "own_bound"]) <= BOUND_GOAL
    return max(over["optimum"]) <= EXACT_GOAL if "optimum" in over else None


def proved(
    widths: Sequence[int], names: Sequence[tuple[str, ...]], seconds: Sequence[float], hosts: int, took: float
) -> float | None:
    if len(widths) > EXACT:
        return None
    rows = [Row(gpus, taken, own) for gpus, taken, own in zip(widths, seconds, names, strict=True)]
    try:
        return min(took, optimum(rows, hosts, GPUS, took + 1e-3))
    except TooMany:
        return None


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": round(mean(values), 3), "worst": round(max(values), 3)}


def small(name: str, widths: Sequence[int], hosts: int, seeds: int, names: tuple[str, ...]) -> dict[str, Any]:
    """A few rows whose GPUs are drawn from `widths`, with right estimates."""
    over = []
    for seed in range(seeds):
        chance = random.Random(seed)
        gpus = [chance.choice(widths) for _ in range(chance.choice([6, 7, 8]))]
        seconds = [chance.lognormvariate(6, 0.6) for _ in gpus]
        tasks = [Task(str(row), wanted, seconds[row], names) for row, wanted in enumerate(gpus)]
        took = makespan(ours(tasks, seconds, hosts, GPUS, len(tasks)))
        best = proved(gpus, [names] * len(gpus), seconds, hosts, took)
        if best is not None:
            over.append(took / best)
    return {
        "figure": "small",
        "widths": name,
        "hosts": hosts,
        "proved": len(over),
        "seeds": seeds,
        "over_optimum": spread(over),
        "at_optimum": sum(value < 1.0001 for value in over),
        "met": max(over) <= EXACT_GOAL,
    }


def cost(rows: int, hosts: int, goal: float) -> dict[str, Any]:
    """Of a decision on idle hosts, and on busy ones of which some have just lost a row."""
    chance = random.Random(rows)
    spent = []
    for widths in (LABELS["megatron, image"], [1, 2, 4, 8], [8], [1], [0]):
        tasks = [Task(str(row), chance.choice(widths), chance.lognormvariate(6, 0.6)) for row in range(rows)]
        idle = [Machine(str(host), GPUS, 16) for host in range(hosts)]
        starts = timed(lambda tasks=tasks, idle=idle: place(tasks, idle), spent).starts
        begun = {start.task for start in starts}
        there: list[list[Running]] = [[] for _ in idle]
        for start in starts[hosts // 4 + 1 :]:
            there[int(start.host)].append(Running(tasks[start.task], chance.random() * 600))
        busy = [Machine(str(host), GPUS, 16, running=tuple(running)) for host, running in enumerate(there)]
        rest = [task for row, task in enumerate(tasks) if row not in begun]
        timed(lambda rest=rest, busy=busy: place(rest, busy), spent)
    worst = round(max(spent), 1)
    return {"figure": "cost", "rows": rows, "hosts": hosts, "worst_ms": worst, "goal_ms": goal, "met": worst <= goal}


def timed(work: Callable[[], Any], spent: list[float]) -> Any:
    begun = time.process_time()
    result = work()
    spent.append((time.process_time() - begun) * 1000)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
