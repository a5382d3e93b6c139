"""What a label over many hosts costs the client: CPU and memory for each row, at 100, 300 and 1,000 rows.

    python bench/fleet.py [--sizes 100x4,300x16,1000x64] [--seconds 3] [--plain] [--profile FILE]

One JSON line a size, and one with the goals; exit code 1 where a goal is missed. The story is the real one from the
workflow to the records: placement, plans, journal, view, settling, history. The hosts are played (tests/run): rows of
two GPUs each, four at once on a host, which run for `--seconds` on the average and write one line. The view draws on a
terminal that nobody looks at, four times a second whatever runs; with `--plain` it writes lines.

cpu_ms_per_row: CPU of the client over the whole command, and what of it was before the first row (`prepare`).
rss_kb_per_row: what the client's memory grew by since before the command.
longest_tick: seconds of CPU (and by the clock) between two looks at the rows. Goal: 0.5 of CPU.
steady: CPU in percent of a core while as many rows run as there is room for, and nothing starts or ends.
Goal: cpu_ms_per_row of the last size at most 1.3 times that of the first.

`--profile` writes what cProfile saw of the last size, in which case the figures are worth nothing.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import subprocess
import sys
from typing import Any

from fleet_world import Fleet

GOAL, TICK = 1.3, 0.5


def main() -> int:
    options = _options()
    if options.one:
        print(json.dumps(_one(options)), flush=True)
        return 0
    sizes = options.sizes.split(",")
    found = [_in_a_process_of_its_own(size, options) for size in sizes]
    for size in sizes:
        _in_a_process_of_its_own(f"0x{size.partition('x')[2]}", options)
    ratio = found[-1]["cpu_ms_per_row"] / found[0]["cpu_ms_per_row"]
    longest = max(one["longest_tick_cpu"] for one in found)
    print(json.dumps({"figure": "goals", "cpu_ratio": round(ratio, 2), "goal": GOAL, "longest_tick_cpu": longest}))
    return int(ratio > GOAL or longest > TICK)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="100x4,300x16,1000x64", help="rows x hosts, with commas")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a row takes on the average")
    parser.add_argument("--plain", action="store_true", help="lines, as without a terminal")
    parser.add_argument("--profile", default="", help="a file for what cProfile saw")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_a_process_of_its_own(size: str, options: argparse.Namespace) -> dict[str, Any]:
    """Memory that was taken once is not given back."""
    words = [sys.executable, __file__, "--one", size, "--seconds", str(options.seconds), "--profile", options.profile]
    words += ["--plain"] if options.plain else []
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    print(done.stdout, end="", flush=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _one(options: argparse.Namespace) -> dict[str, Any]:
    rows, hosts = map(int, options.one.split("x"))
    with Fleet(rows, hosts, options.seconds, options.plain) as fleet:
        if options.profile and rows:
            with cProfile.Profile() as profile:
                fleet.perform()
            profile.dump_stats(options.profile)
        else:
            fleet.perform()
        return fleet.figures() if rows else fleet.steady()


if __name__ == "__main__":
    sys.exit(main())
