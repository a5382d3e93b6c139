"""How much our noxfile and tasks add to the bare tools' start: `nox -l` and `invoke --list` against the same tool on an
empty file. Commands of `ci-tasks` that only look are measured against the bare interpreter (`python -c pass`) and the
time that they take to read and print, without any import: that of the same command once more in one process.

Times are of the processor, user and system, children included. Runs are paired, one of each in turn, so that a machine
whose speed drifts does not decide.

    python bench/startup.py [--runs N]      one JSON line a figure; `ratio` is the median of the pairs' ratios.
    Exit code 1 where a ratio is above its limit. The goal of commands that look, 1.2 times the interpreter and what
    reading takes, has none: `re`, `typing` and `dataclasses` alone take longer than the interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EMPTY = {
    "noxfile.py": 'import nox\n\n\n@nox.session\ndef nothing(session: nox.Session) -> None:\n    """does nothing"""\n',
    "tasks.py": 'from invoke import task\n\n\n@task\ndef nothing(c):\n    """does nothing"""\n',
}
TOOLS = {tool: [sys.executable, "-m", *tool.split()] for tool in ("nox -l", "invoke --list")}
LIMIT = 1.15
GOAL = 1.2  # of the interpreter's time, besides what reading takes
LOOKS = ("--complete -- ru", "hosts", "jobs --repo examples/tiny-slime", "runs", "logs last")
INTERPRETER = [sys.executable, "-c", "pass"]
PROGRAM = "from ci_tasks.cli.program import main; main()"
TWICE = """
import sys, time
from ci_tasks.cli import program
for _ in range(2):
    begun = time.process_time()
    program.run(sys.argv)
print(time.process_time() - begun, file=sys.stderr)
"""
# Without compiled files, every program would compile all that it imports.
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="pairs of each (default 15)")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as home:
        for name, text in EMPTY.items():
            Path(empty, name).write_text(text)
        ENVIRON["CI_TASKS_HOME"] = home
        _seconds([sys.executable, "-c", PROGRAM, "remote", "--host", "sim", "precision"], str(ROOT))  # one run
        figures = [_compared(name, command, (command, empty), runs) for name, command in TOOLS.items()]
        figures += [_look(words.split(), empty, runs) for words in LOOKS]
    for figure in figures:
        print(json.dumps(figure))
    return int(any(figure["ratio"] > LIMIT for figure in figures if figure["figure"] in TOOLS))


def _look(words: list[str], empty: str, runs: int) -> dict[str, Any]:
    figure = _compared(f"ci-tasks {words[0]}", [sys.executable, "-c", PROGRAM, *words], (INTERPRETER, empty), runs)
    reading = statistics.median(_reading(words) for _ in range(max(3, runs // 3)))
    goal = GOAL * figure["bare_s"] + reading
    return {**figure, "reading_s": round(reading, 3), "goal_s": round(goal, 3)}


def _compared(name: str, ours: list[str], other: tuple[list[str], str], runs: int) -> dict[str, Any]:
    """`other` is the bare command and its directory."""
    _seconds(*other), _seconds(ours, str(ROOT))  # once, not counted: byte code, disk cache
    pairs = [(_seconds(ours, str(ROOT)), _seconds(*other)) for _ in range(runs)]
    our, bare = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(our / bare for our, bare in pairs)
    return {"figure": name, "ours_s": round(our, 3), "bare_s": round(bare, 3), "ratio": round(ratio, 3), "pairs": runs}


def _seconds(command: list[str], directory: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    quiet = subprocess.DEVNULL
    subprocess.run(command, cwd=directory, env=ENVIRON, stdout=quiet, stderr=quiet, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _reading(words: list[str]) -> float:
    command = [sys.executable, "-c", TWICE, *words]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRON, capture_output=True, text=True, check=True)
    return float(done.stderr.splitlines()[-1])


if __name__ == "__main__":
    raise SystemExit(main())
