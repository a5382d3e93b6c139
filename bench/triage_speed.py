"""How fast a triage reads a large log, and `ci-tasks triage FILE`, which looks for jobs and steps as well; each against
`grep -iE` for the same words over the same file. And the triage's memory.

    python bench/triage_speed.py [--size 1G] [--pairs 5] [--seed 1] [--matching 2] [--keep FILE]

Prints one JSON line a figure. Exit code 1 where a figure is above its limit.

The log is made like a large job's: requests, batches, metrics, progress bars and warnings, and at its end a failure of
several ranks. `--matching` is the share of its lines, in percent, that have one of the words. All read it in turn,
once each per pair, in processes of their own, and the ratio is the median of the pairs' ratios. grep gets the words of
rules.yaml and counts the lines that match, since it stops at the first where its output goes nowhere. Times include the
processes' start.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ci_tasks import resources  # noqa: E402

MEGABYTES = 100.0
SLOWER, SLOWER_WHERE_MUCH_TELLS, MUCH = 1.0, 2.0, 0.1  # ratios; the share of lines from which on the second holds
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
PIECE = 1 << 18
FAILURE = "ValueError: rollout 311 has no advantages"

# In a process of its own, so that the peak is the reading's: VmHWM starts anew with a process, ru_maxrss does not.
READ = """
import json, sys, time
from ci_tasks.logs.triage.log_triage import triage
def pieces(path, size):
    with open(path, "rb") as log:
        while piece := log.read(size):
            yield piece
begun = time.perf_counter()
got = triage(pieces(sys.argv[1], int(sys.argv[2])))
seconds = time.perf_counter() - begun
peak = next(int(row.split()[1]) for row in open("/proc/self/status") if row.startswith("VmHWM"))
print(json.dumps({"line": got.line, "line_no": got.line_no, "seconds": seconds, "peak_mb": peak / 1024}))
"""

PROGRAM = "from ci_tasks.cli.program import main; main()"

QUIET = [
    '[2025-03-01 {time} TP{rank}] INFO:     10.0.0.{byte}:{port} - "POST /generate HTTP/1.1" 200 OK',
    "[2025-03-01 {time} TP{rank}] Decode batch. #running-req: {byte}, #token: {port}, token usage: 0.{byte}, "
    "gen throughput (token/s): {port}.{byte}, #queue-req: 0",
    "[2025-03-01 {time} TP{rank}] Prefill batch. #new-seq: {rank}, #new-token: {port}, #cached-token: {byte}",
    "(MegatronTrainRayActor pid={port}) step {byte}: {{'train/loss': 0.{port}, 'train/grad_norm': 1.{byte}}}",
    "(RolloutManager pid={port}) \x1b[36mrollout {byte}\x1b[0m: mean reward 0.{byte}, length {port}, cut 0.0{rank}",
    "iteration {byte}/ 1000 | consumed samples: {port} | time per iteration (ms): {port}.1 | lm loss: 2.{byte}E+00",
]
MATCHING = [
    "(MegatronTrainRayActor pid={port}) UserWarning: recompute is not supported for layer {byte}, falling back to full",
    "[2025-03-01 {time}] WARNING: request {id} failed with status 503, retrying in {rank} s",
    "(raylet) [2025-03-01 {time},120 W {port} {port}] memory_monitor.cc:197: heartbeat of worker {id} was late",
    "iteration {byte}/ 1000 | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "(RolloutManager pid={port}) sample {id}: tool call failed: unexpected end of JSON at column {byte}",
    'x.py:{byte}: the answer of the model: "I cannot solve it, since {id} does not divide {port}"',
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=_size, default=_size("1G"), help="of the log, with K, M or G (default 1G)")
    parser.add_argument("--pairs", type=int, default=5, help="readings of each (default 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--matching", type=float, default=2.0, help="percent of lines with such a word (default 2)")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="make the log there, and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        log = options.keep or Path(directory, "log")
        with log.open("wb") as file:
            for piece in made(options.size, random.Random(options.seed), options.matching / 100):
                file.write(piece)
        figures = measured(log, options.pairs)
    for figure in figures:
        print(json.dumps(figure))
    return int(any(figure["value"] > figure["limit"] for figure in figures if "limit" in figure))


def _size(text: str) -> int:
    return int(float(text.rstrip("BbKMG")) * UNITS.get(text.rstrip("Bb")[-1:], 1))


def made(size: int, dice: random.Random, matching: float) -> Iterator[bytes]:
    """A log of about `size` bytes. Its blocks come again with other digits: drawing each line of a gigabyte anew would
    take longer than all readings."""
    blocks = [_block(dice, matching) for _ in range(24)]
    end = _end().encode()
    written = 0
    while written < size - len(end):
        block = blocks[dice.randrange(len(blocks))].translate(bytes.maketrans(b"0123456789", _shuffled(dice)))
        written += len(block)
        yield block
    yield end


def _shuffled(dice: random.Random) -> bytes:
    return bytes(dice.sample(b"0123456789", 10))


def _block(dice: random.Random, matching: float) -> bytes:
    rows = []
    for _ in range(10_000):
        shape = dice.choice(MATCHING if dice.random() < matching else QUIET)
        rows.append(_row(shape, dice))
        if dice.random() < 0.002:
            rows.append(
                "\r".join(f"Rollout generation: {p:3}%|{'#' * (p // 10):10}| {p}/100" for p in range(0, 101, 4))
            )
    return ("\n".join(rows) + "\n").encode()


def _row(shape: str, dice: random.Random) -> str:
    clock = f"{dice.randrange(24):02}:{dice.randrange(60):02}:{dice.randrange(60):02}"
    numbers = {"rank": dice.randrange(8), "byte": dice.randrange(256), "port": dice.randrange(1000, 65536)}
    return shape.format(time=clock, id=f"{dice.getrandbits(48):012x}", **numbers)


def _end() -> str:
    """Seven ranks that lost the one which failed, then what started them."""
    exited = "NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error, NCCL version 2.26.2"
    lost = [f"[rank{rank}]: torch.distributed.DistBackendError: {exited}" for rank in range(1, 8)]
    failed = ["Traceback (most recent call last):", '  File "/root/slime/loss.py", line 88, in policy_loss', FAILURE]
    return "\n".join(
        [*(f"[rank0]: {row}" for row in failed), *lost, "##[error]Process completed with exit code 1.", ""]
    )


def words() -> str:
    """rules.yaml's words as an extended regular expression of grep's."""
    import yaml

    listed: str = yaml.safe_load(resources.text("logs/triage/rules.yaml"))["words"]
    return re.sub(r"\|\s+", "|", listed).replace("(?:", "(").replace(r"\d", "[0-9]")


def measured(log: Path, pairs: int) -> list[dict[str, Any]]:
    grep = ["grep", "-ciE", words(), str(log)]
    _grep(grep)  # once, not counted: the disk's cache
    rows = [(_read(log), _grep(grep), _command(log)) for _ in range(pairs)]
    answers, times, commands = [row[0] for row in rows], [row[1][0] for row in rows], [row[2] for row in rows]
    assert FAILURE in answers[0]["line"], f"the triage blames {answers[0]['line']!r}"
    size = log.stat().st_size
    walls = [answer["wall"] for answer in answers]
    wall = statistics.median(walls)
    matching = rows[0][1][1] / answers[0]["line_no"]
    limit = SLOWER_WHERE_MUCH_TELLS if matching > MUCH else SLOWER
    log_is = {
        "log_mb": round(size / 1e6),
        "lines": answers[0]["line_no"],
        "matching": round(matching, 4),
        "pairs": pairs,
    }
    return [
        {"figure": "triage", "value": round(wall, 2), "unit": "s", "mb_per_s": round(size / 1e6 / wall), **log_is},
        {"figure": "grep -ciE", "value": round(statistics.median(times), 2), "unit": "s", "times": _spread(times)},
        {"figure": "ratio", "value": _ratio(walls, times), "limit": limit},
        {"figure": "ci-tasks triage", "value": round(statistics.median(commands), 2), "unit": "s"},
        {"figure": "ratio of the command", "value": _ratio(commands, times), "limit": limit},
        {
            "figure": "peak",
            "value": round(max(answer["peak_mb"] for answer in answers), 1),
            "unit": "MB",
            "limit": MEGABYTES,
        },
    ]


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(statistics.median(one / other for one, other in zip(ours, theirs, strict=True)), 2)


def _spread(times: list[float]) -> list[float]:
    return [round(min(times), 2), round(max(times), 2)]


def _read(log: Path) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    begun = time.perf_counter()
    command = [sys.executable, "-c", READ, str(log), str(PIECE)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return {**json.loads(done.stdout), "wall": time.perf_counter() - begun}


def _command(log: Path) -> float:
    command = [sys.executable, "-c", PROGRAM, "triage", str(log)]
    begun = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert FAILURE in done.stdout, f"the command blames another line: {done.stdout[:500]!r}"
    return time.perf_counter() - begun


def _grep(command: list[str]) -> tuple[float, int]:
    """Its seconds, and how many lines matched."""
    begun = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, "LC_ALL": "C"}, stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - begun, int(done.stdout)


if __name__ == "__main__":
    raise SystemExit(main())
