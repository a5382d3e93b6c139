"""How much our noxfile and tasks add to the bare tools' start: `nox -l` and `invoke --list` against the same tool on an
empty file. Commands of `ci-tasks` that only look are measured against the bare interpreter (`python -c pass`).
Runs are paired, one of each in turn, so that a machine whose speed drifts does not decide.

    python bench/startup.py [--runs N]      one JSON line a figure; `ratio` is the median of the pairs' ratios.
    Exit code 1 where a ratio is above its limit; those against the interpreter have none yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EMPTY = {
    "noxfile.py": 'import nox\n\n\n@nox.session\ndef nothing(session: nox.Session) -> None:\n    """does nothing"""\n',
    "tasks.py": 'from invoke import task\n\n\n@task\ndef nothing(c):\n    """does nothing"""\n',
}
FIGURES = {
    "nox -l": [sys.executable, "-m", "nox", "-l"],
    "invoke --list": [sys.executable, "-m", "invoke", "--list"],
}
LIMIT = 1.5
PROGRAM = [sys.executable, "-c", "from ci_tasks.cli.program import main; main()"]
LOOKS = {
    "ci-tasks --complete": [*PROGRAM, "--complete", "--", "ci-tasks", "ru"],
    "ci-tasks hosts": [*PROGRAM, "hosts"],
    "ci-tasks jobs": [*PROGRAM, "jobs", "--repo", "examples/tiny-slime"],
    "ci-tasks runs": [*PROGRAM, "runs"],
}
INTERPRETER = [sys.executable, "-c", "pass"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="pairs of each (default 15)")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as empty:
        for name, text in EMPTY.items():
            Path(empty, name).write_text(text)
        figures = [_figure(name, command, (command, empty), runs, LIMIT) for name, command in FIGURES.items()]
        figures += [_figure(name, command, (INTERPRETER, empty), runs, None) for name, command in LOOKS.items()]
    for figure in figures:
        print(json.dumps(figure))
    return int(any(figure["ratio"] > LIMIT for figure in figures if figure["limit"]))


def _figure(name: str, ours: list[str], other: tuple[list[str], str], runs: int, limit: float | None) -> dict[str, Any]:
    """`other` is the bare command and its directory."""
    _seconds(*other), _seconds(ours, str(ROOT))  # once, not counted: byte code, disk cache
    pairs = [(_seconds(ours, str(ROOT)), _seconds(*other)) for _ in range(runs)]
    our, bare = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {
        "figure": name,
        "ours_s": round(our, 3),
        "bare_s": round(bare, 3),
        "ratio": round(statistics.median(our / bare for our, bare in pairs), 3),
        "limit": limit,
        "pairs": runs,
    }


def _seconds(command: list[str], directory: str) -> float:
    begun = time.perf_counter()
    subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    raise SystemExit(main())
