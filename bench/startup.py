"""How much our noxfile and tasks add to the bare tools' start: `nox -l` and `invoke --list` against the same tool on an
empty file. Runs are paired, one of each in turn, so that a machine whose speed drifts does not decide.

    python bench/startup.py [--runs N]      one JSON line a figure; `ratio` is the median of the pairs' ratios.
    Exit code 1 where a ratio is above its limit.
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="pairs of each (default 15)")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as empty:
        for name, text in EMPTY.items():
            Path(empty, name).write_text(text)
        figures = [_figure(name, command, empty, runs) for name, command in FIGURES.items()]
    for figure in figures:
        print(json.dumps(figure))
    return int(any(figure["ratio"] > LIMIT for figure in figures))


def _figure(name: str, command: list[str], empty: str, runs: int) -> dict[str, float | str | int]:
    _seconds(command, empty), _seconds(command, str(ROOT))  # once, not counted: byte code, disk cache
    pairs = [(_seconds(command, str(ROOT)), _seconds(command, empty)) for _ in range(runs)]
    ours, bare = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(our / other for our, other in pairs)
    return {
        "figure": name,
        "ours_s": round(ours, 3),
        "empty_s": round(bare, 3),
        "ratio": round(ratio, 3),
        "limit": LIMIT,
        "pairs": runs,
    }


def _seconds(command: list[str], directory: str) -> float:
    begun = time.perf_counter()
    subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    raise SystemExit(main())
