"""What hostile or huge files of a run cost the client: peak memory and seconds to judge each, in a process of its own.

python bench/bounds.py [NAME…]

No case may take more than 150 MB. The last cases read histories of many runs, as `runs` and `report` do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path

from ci_tasks.agent.run_directory import RunDir

LIMIT_MB = 150
MEGABYTE = 1 << 20
PLAN = {
    "id": "b.01", "label": "ppo", "row": "r", "host": "local", "test": "tests/t.py", "workspace": "/nowhere",
    "timeout_minutes": 90, "gpus": 2, "runtime": "none",
    "checkout": {"path": "/c", "commit": "1", "tree": "2", "dirty": []},
}  # fmt: skip
STATUS = {"state": "ended", "end": "exit", "exit_code": 1, "started_at": 100.0, "ended_at": 102.5}
JUDGE = """
import resource, sys, time
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.results.judge_run import judge_run
began = time.process_time()
judged = judge_run(RunDir(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, time.process_time() - began, judged.status)
"""
COMMAND = """
import resource, sys, time
from ci_tasks.cli.program import main
began, out = time.process_time(), sys.stdout
sys.stdout = open("/dev/null", "w")
try:
    main()
except SystemExit as ended:
    code = ended.code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, time.process_time() - began, code, file=out)
"""


def write(path: str, pieces: Iterable[bytes]) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as out:
        out.writelines(pieces)


def junit(run: RunDir) -> None:
    """108 MB of JUnit: a failure with a long traceback for each of 10,000 tests."""
    case = (
        b'<testcase classname="t" name="n"><failure message="m">'
        + b"E   assert 1 == 2\n" * 600
        + b"</failure></testcase>"
    )
    write(run.junit, chain([b'<testsuite tests="10000">'], repeat(case, 10_000), [b"</testsuite>"]))


def nuls(run: RunDir) -> None:
    """A log of 200 MB of NUL bytes."""
    write(run.log, (bytes(MEGABYTE) for _ in range(200)))


def long_line(run: RunDir) -> None:
    """A log of one line of 300 MB."""
    write(run.log, (b"x" * MEGABYTE for _ in range(300)))


def tracebacks(run: RunDir) -> None:
    """A log of 400,000 lines of tracebacks."""
    text = 'Traceback (most recent call last):\n  File "/job/t.py", line 5, in load\n    x()\nValueError: no %d\n'
    write(run.log, ((text % number).encode() for number in range(100_000)))


def plain(run: RunDir) -> None:
    """A log of 200 MB of ordinary lines, to compare with."""
    line = b"(MegatronTrainRayActor pid=71234) step 3: loss 2.013 grad norm 0.41 tokens per second 18123\n"
    write(run.log, (line * 10_000 for _ in range(200 * MEGABYTE // (len(line) * 10_000))))


def events(run: RunDir) -> None:
    """A million events."""
    write(run.events, (b'{"t": %d.5, "event": "step", "name": "s%d"}\n' % (at, at) for at in range(1_000_000)))


def status(run: RunDir) -> None:
    """A status of 200 MB."""
    write(run.status, (b'{"state": "ended", "error": "' if at == 0 else b"x" * MEGABYTE for at in range(200)))


def evidence(run: RunDir) -> None:
    """200 MB of what the probe noted."""
    line = b'{"processes": [{"pid": 7, "argv": ["python", "' + b"x" * 1000 + b'"]}]}\n'
    write(os.path.join(run.path, "evidence.jsonl"), (line * 1000 for _ in range(200)))


CASES: dict[str, Callable[[RunDir], None]] = {
    case.__name__: case for case in (plain, nuls, long_line, tracebacks, junit, events, status, evidence)
}


def measure(code: str, *argv: str, home: str) -> tuple[float, float, str]:
    """(peak MB, seconds of processor, how it ended)."""
    environ = {**os.environ, "CI_TASKS_HOME": home}
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, env=environ)
    if done.returncode:
        return float("nan"), float("nan"), done.stderr.strip().rpartition("\n")[2]
    memory, seconds, how = done.stdout.split(maxsplit=2)
    return float(memory), float(seconds), how.strip()


def judge_cases(names: list[str]) -> Iterator[tuple[str, tuple[float, float, str]]]:
    for name in names:
        with tempfile.TemporaryDirectory() as home:
            run = RunDir(os.path.join(home, "run"))
            os.makedirs(run.artifacts)
            Path(run.plan).write_text(json.dumps(PLAN))
            Path(run.status).write_text(json.dumps(STATUS))
            Path(run.log).write_text("AssertionError: the loss is 2.0\n")
            CASES[name](run)
            yield name, measure(JUDGE, run.path, home=home)


def many_runs(count: int = 1000) -> Iterator[tuple[str, tuple[float, float, str]]]:
    """A batch of 1,000 rows, which `runs` and `report` read."""
    with tempfile.TemporaryDirectory() as home:
        batch = f"{time.strftime('%Y%m%d-%H%M%S')}-ppo-abcd"
        for number in range(1, count + 1):
            run = RunDir(os.path.join(home, "runs", batch, f"{number:02}"))
            os.makedirs(run.artifacts)
            Path(run.plan).write_text(json.dumps({**PLAN, "id": f"{batch}.{number:02}", "row": f"row {number}"}))
            Path(run.status).write_text(json.dumps(STATUS))
            Path(run.log).write_text("AssertionError: the loss is 2.0\n" * 300)
        yield "runs", measure(COMMAND, "runs", home=home)
        yield "report", measure(COMMAND, "report", batch, home=home)
        yield "report --html", measure(COMMAND, "report", batch, "--html", os.path.join(home, "page.html"), home=home)


def main() -> int:
    chosen = sys.argv[1:]
    most = 0.0
    results = [*judge_cases([name for name in CASES if not chosen or name in chosen])]
    results += [] if chosen and "runs" not in chosen else [*many_runs()]
    for name, (memory, seconds, how) in results:
        most = max(most, memory)
        print(json.dumps({"case": name, "MB": round(memory, 1), "seconds": round(seconds, 2), "ended": how}))
    return int(not most <= LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
