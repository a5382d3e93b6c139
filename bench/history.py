"""`runs` where there are many: how long a filtered list takes, what a line costs a run, and how long it takes to make
the history anew from the run directories.

    python bench/history.py [--runs 100000] [--files 2000] [--tries 5]

A home is made with `--files` whole run directories, and a history that knows `--runs` runs, the directories of the
others without files. Every figure of a command is the time of the whole command, start of the interpreter included
(`bare` is one that does nothing); `cpu_s` does not depend on who else uses the machine. Beside them, in the same run:
the same question put to the record.json files by grep, jq (where it is installed) and Python, over `--files` of them;
`scaled_s` is that by the number of runs, which flatters them where the files no longer fit into memory. One JSON line a
figure; exit code 1 where a filtered list takes over a second of CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


from ci_tasks.agent.codec import decode  # noqa: E402
from ci_tasks.agent.run_directory import RunDir, write_json  # noqa: E402
from ci_tasks.records import RunRecord  # noqa: E402
from ci_tasks.results import history, index, store  # noqa: E402

LIMIT = 1.0
ROWS = 10  # of a batch
LABELS = ["ckpt", "megatron", "image", "sglang-config", "precision", "cpu-unittest"]
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ci_tasks.cli.program import main; main()"
PROGRAM = [sys.executable, "-c", START]
COMMANDS = {
    "bare": "--version",
    "runs": "runs",
    "runs --label": "runs --label ckpt --limit 20",
    "runs --row": "runs --row row-07 --limit 20",
    "runs --status --host": "runs --status failed --host h100b --limit 20",
    "runs --status, none": "runs --status vacuous --limit 20",
    "runs --commit": "runs --commit {commit} --limit 20",
    "runs --since --until": "runs --since 2028-01-10 --until 2028-01-12 --limit 20",
    "runs --flakes --label": "runs --flakes --label ckpt",
    "runs --flakes": "runs --flakes",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--tries", type=int, default=5)
    words = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="ci-tasks-history-"))
    os.environ[store.HOME_ENV] = str(home)
    try:
        _make_files(home, words.files)
        _rebuild(words.files)
        _fill(words.runs - words.files)
        slowest = _commands(words)
        _others(home, words)
        _queries(words)
        _inserts()
    finally:
        shutil.rmtree(home)
    return int(slowest > LIMIT)


# -- the home --------------------------------------------------------------------------------------------------------


def record_of(number: int) -> dict[str, Any]:
    """As long as a real one: 5 KB."""
    luck = random.Random(number)
    second = 1_767_225_600 + number * 60 // ROWS
    started = time.strftime("%Y-%m-%dT%H:%M:%S.000+00:00", time.gmtime(second))
    status = luck.choices(["passed", "failed", "blocked", "lost"], [85, 10, 4, 1])[0]
    commit = f"{random.Random(number // 100).getrandbits(160):040x}"
    return {
        "id": f"{batch_of(number)}.{number % ROWS + 1:02d}",
        "label": LABELS[number // ROWS % len(LABELS)],
        "row": f"test_of_something[row-{number % ROWS:02d}]",
        "host": luck.choice(["h100a", "h100b", "sim"]),
        "status": status,
        "reason": "" if status == "passed" else "AssertionError: loss 0.71 is not below 0.7",
        "exit_code": 0 if status == "passed" else 1,
        "started_at": started,
        "ended_at": started,
        "timings": {"seconds": round(luck.uniform(60, 3600), 3), "queued": round(luck.uniform(0, 60), 3)},
        "checkout": {"path": "/home/somebody/slime", "commit": commit, "tree": commit[::-1], "dirty": []},
        "gpus": 8,
        "gpu_ids": list(range(8)),
        "log": {"bytes": 5901, "sha256": "0" * 64},
        "evidence": {"kind": "metrics", "tests": 0, "failures": 0, "skipped": 0, "steps": 12, "detail": ""},
        "attempts": [{"id": f"{batch_of(number)}.01", "host": "h100a", "status": status}],
        "metrics": {},
        "triage": None,
        "deviations": [{"what": f"what {at}", "ci": "c" * 40, "here": "h" * 40, "why": "w" * 40} for at in range(9)],
        "environment": {"packages": {f"package-{at}": "1.2.3" for at in range(90)}},
    }


def batch_of(number: int) -> str:
    second = 1_767_225_600 + number // ROWS * 60
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(second)) + f"-{LABELS[number // ROWS % len(LABELS)]}"


def _make_files(home: Path, count: int) -> None:
    for number in range(count):
        run = RunDir(str(home / "runs" / batch_of(number) / f"{number % ROWS + 1:02d}"))
        os.makedirs(run.path)
        write_json(run.plan, {"gpu_locks": {"count": 8}})
        write_json(run.record, record_of(number))


def _entry(number: int) -> dict[str, Any]:
    record = decode(RunRecord, record_of(number), where="bench")
    run = RunDir(str(store.home() / "runs" / batch_of(number) / f"{number % ROWS + 1:02d}"))
    return index.entry(batch_of(number), number % ROWS + 1, run, record)


def _fill(count: int) -> None:
    """As many newer runs, each batch with a directory that has one row's in it."""
    first = 10_000_000

    def put(connection: Any) -> None:
        for at in range(first, first + count, 5000):
            found = range(at, min(at + 5000, first + count))
            with index.transaction(connection):
                index.put(connection, [_entry(number) for number in found])
                names = {batch_of(number) for number in found}
                connection.executemany("INSERT OR REPLACE INTO batches VALUES (?, 0, 0)", [(name,) for name in names])

    index.with_connection(put)
    for at in range(first, first + count, ROWS):
        os.makedirs(store.home() / "runs" / batch_of(at) / "01")


# -- the figures -----------------------------------------------------------------------------------------------------


def _rebuild(files: int) -> None:
    taken = timed(lambda: index.with_connection(history.sync))
    known = len(history.search(history.RunQuery(limit=files)))
    assert known == files, f"{known} of {files} runs were found"
    tell("rebuild", runs=files, seconds=taken, ms_per_1000_runs=1e6 * taken / files)


def _commands(words: argparse.Namespace) -> float:
    commit = record_of(10_000_000)["checkout"]["commit"][:10]
    slowest = 0.0
    for name, flags in COMMANDS.items():
        typed = [*PROGRAM, *flags.format(commit=commit).split()]
        run(typed)  # the first one lists the directory
        before = cpu()
        taken = median(timed(lambda typed=typed: run(typed)) for _ in range(words.tries))  # type: ignore[misc]
        used = (cpu() - before) / words.tries
        tell(name, runs=words.runs, seconds=taken, cpu_s=used)
        if "flakes" not in name:
            slowest = max(slowest, used)
    return slowest


def _others(home: Path, words: argparse.Namespace) -> None:
    """The newest 20 of one label, out of the records themselves."""
    files = sorted((home / "runs").glob("*/*/record.json"))
    listed = home / "files"
    listed.write_text("\n".join(map(str, files)))
    ways = {
        "grep": f'xargs grep -l \'"label": "ckpt"\' < {listed} | sort -r | head -20',
        "jq": f"xargs jq -r 'select(.label == \"ckpt\") | .id' < {listed} | sort -r | head -20",
    }
    for name, shell in ways.items():
        if shutil.which(name):
            scaled(name, len(files), words, lambda shell=shell: run(["sh", "-c", shell]))  # type: ignore[misc]

    def python() -> None:
        found = [json.loads(file.read_text()) for file in files]
        sorted((one["id"] for one in found if one["label"] == "ckpt"), reverse=True)[:20]

    scaled("python, json of each", len(files), words, python)


def scaled(name: str, files: int, words: argparse.Namespace, work: Callable[[], object]) -> None:
    taken = median(timed(work) for _ in range(words.tries))
    tell(f"beside: {name}", runs=files, seconds=taken, scaled_s=taken * words.runs / files)


def _queries(words: argparse.Namespace) -> None:
    """In a process that has already asked once, as the scheduler does."""
    queries: dict[str, Callable[[], object]] = {
        "durations()": lambda: history.durations("ckpt"),
        "latest()": lambda: history.latest("ckpt", "/home/somebody/slime"),
    }
    for name, query in queries.items():
        query()
        tell(name, runs=words.runs, seconds=median(timed(query) for _ in range(words.tries)))


def _inserts() -> None:
    """What a run pays at its end: open, one line, close."""
    paid = list(_paid(200))
    tell("note() of one run", runs=len(paid), seconds=median(paid), slowest_s=max(paid))


def _paid(count: int) -> Iterator[float]:
    for number in range(20_000_000, 20_000_000 + count):
        run_dir = RunDir(str(store.home() / "runs" / batch_of(number) / f"{number % ROWS + 1:02d}"))
        record = decode(RunRecord, record_of(number), where="bench")
        yield timed(lambda run_dir=run_dir, record=record: index.add_run(run_dir, record))  # type: ignore[misc]


def run(typed: list[str]) -> None:
    subprocess.run(typed, check=True, stdout=subprocess.DEVNULL)


def cpu() -> float:
    used = os.times()
    return used.children_user + used.children_system


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def tell(name: str, **figures: float) -> None:
    print(json.dumps({"history": name, **{key: round(value, 4) for key, value in figures.items()}}), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
