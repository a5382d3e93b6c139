"""A host that lies: what does a client do with it?

In this process, a server speaks our protocol over a link in memory and lies in one place: greetings, frames and
messages, statuses, directories, descriptions, logs, the contents of files, answers, streams that never end, the output
of programs. The client attaches to its run, starts one there, cleans up or asks for its facts; then it looks at what is
here, and cleans up. `tests/parts/hostile_world.py` says what is right and what is wrong.

    python bench/hostile_host.py [--cases 10000] [--seed N] [--only KIND] [--jobs 2]

One JSON line for each kind: cases, how many were refused with a named error, harmless, and wrong; the most memory that
one case took, and the longest. The last line is the sum. A wrong case is named with its seed (`--only KIND --seed N
--cases 1` does it again). Exit code 1 where one was wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.parts.hostile_cases import KINDS
from tests.parts.hostile_world import HARMLESS, REFUSED, WRONG, HostileWorld, Outcome

SLOW = {"endless streams": 0.3, "program output": 0.5}  # of as many cases as the others have
_SHARD = 50  # cases of one home


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    words = parser.parse_args()
    kinds = [words.only] if words.only else list(KINDS)
    weights = {kind: SLOW.get(kind, 1.0) for kind in kinds}
    counts = {kind: round(words.cases * weight / sum(weights.values())) for kind, weight in weights.items()}
    counts[kinds[0]] += words.cases - sum(counts.values())
    shards = [
        (kind, range(first, min(first + _SHARD, words.seed + count)))
        for kind, count in counts.items()
        for first in range(words.seed, words.seed + count, _SHARD)
    ]
    begun = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(words.jobs) as pool:
        outcomes = [outcome for done in pool.imap_unordered(perform, shards) for outcome in done]
    for outcome in outcomes:
        if outcome.verdict == WRONG:
            print(f"WRONG {outcome.kind} {outcome.seed}: {'; '.join(outcome.problems)}"[:2000], file=sys.stderr)
    for kind in kinds:
        print(json.dumps({"kind": kind, **figures([each for each in outcomes if each.kind == kind])}), flush=True)
    total = figures(outcomes)
    print(json.dumps({"figure": "hostile host", **total, "seconds": round(time.monotonic() - begun)}), flush=True)
    return 1 if total["wrong"] else 0


def perform(shard: tuple[str, range]) -> list[Outcome]:
    """In a home of their own; in memory, where there is a file system for that."""
    kind, seeds = shard
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as directory, HostileWorld(Path(directory)) as world:
        return [world.perform(kind, seed) for seed in seeds]


def figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    counts = Counter(outcome.verdict for outcome in outcomes)
    return {
        "cases": len(outcomes),
        "refused": counts[REFUSED],
        "harmless": counts[HARMLESS],
        "wrong": counts[WRONG],
        "memory_mb": max((outcome.memory for outcome in outcomes), default=0) >> 20,
        "longest": round(max((outcome.seconds for outcome in outcomes), default=0.0), 1),
    }


if __name__ == "__main__":
    sys.exit(main())
