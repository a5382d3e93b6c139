"""What the probe costs a process: the same interpreter with and without it, in turn.

    python bench/probe.py [--python PYTHON] [--runs N]     one JSON line a figure
Figures: the start of an interpreter (also one that keeps no byte code), and the import of torch if PYTHON has it.
`extra_ms` is the median of the pairs' CPU time apart, `ratio` that of their wall times. Exit code 1 if
a process pays more than its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ci_tasks.agent.evidence import write_files  # noqa: E402
from ci_tasks.agent.run_directory import RunDir  # noqa: E402

LIMIT_MS = 30.0


class Cost(NamedTuple):
    """Seconds of a command: on the clock, and of CPU."""

    wall: float
    cpu: float


class Interpreters(NamedTuple):
    """Two venvs over one Python; the first has the probe."""

    ours: str
    bare: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter (default: this one)")
    parser.add_argument("--runs", type=int, default=20, help="pairs of each (default 20)")
    args = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as directory:
        pair = _interpreters(Path(directory), args.python)
        figures = [_figure("start", pair, ["-c", "pass"], args.runs)]
        figures.append(_figure("start without byte code", pair, ["-B", "-c", "pass"], args.runs, without_bytecode=True))
        if _has(pair.bare, "torch"):
            figures.append(_figure("import torch", pair, ["-c", "import torch"], max(3, args.runs // 4)))
    for figure in figures:
        print(json.dumps(figure))
    return int(any(float(figure.get("extra_ms", 0)) > LIMIT_MS for figure in figures))


def _interpreters(directory: Path, python: str) -> Interpreters:
    words = [python, "-c", "import site; print(*site.getsitepackages(), sep='\\n')"]
    sites = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("\n")
    run = RunDir(str(directory / "run"))
    write_files(run)
    programs = []
    for name in ("ours", "bare"):
        subprocess.run([python, "-m", "venv", "--without-pip", str(directory / name)], check=True)
        packages = next((directory / name).glob("lib/python3*/site-packages"))
        (packages / "below.pth").write_text("".join(f"{site}\n" for site in sites if site))
        if name == "ours":
            shutil.copytree(run.probe, packages, dirs_exist_ok=True)
        programs.append(str(directory / name / "bin" / "python"))
    return Interpreters(*programs)


def _has(python: str, package: str) -> bool:
    words = [python, "-c", f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"]
    return subprocess.run(words, check=False).returncode == 0


def _figure(
    name: str, pair: Interpreters, words: Sequence[str], runs: int, without_bytecode: bool = False
) -> dict[str, Any]:
    _cost(pair.bare, words)  # not counted: disk cache
    if without_bytecode:
        shutil.rmtree(next(Path(pair.ours).parents[1].glob("lib/python3*/site-packages/__pycache__")))
    else:
        _cost(pair.ours, words)
    costs = [(_cost(pair.ours, words), _cost(pair.bare, words)) for _ in range(runs)]
    return {
        "figure": name,
        "extra_ms": round(statistics.median(ours.cpu - bare.cpu for ours, bare in costs) * 1000, 2),
        "limit_ms": LIMIT_MS,
        "ours_ms": round(statistics.median(ours.wall for ours, _ in costs) * 1000, 1),
        "bare_ms": round(statistics.median(bare.wall for _, bare in costs) * 1000, 1),
        "ratio": round(statistics.median(ours.wall / bare.wall for ours, bare in costs), 3),
        "pairs": runs,
    }


def _cost(python: str, words: Sequence[str]) -> Cost:
    begun = time.perf_counter()
    pid = os.posix_spawn(python, [python, *words], os.environ)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, words
    return Cost(time.perf_counter() - begun, usage.ru_utime + usage.ru_stime)


if __name__ == "__main__":
    sys.exit(main())
