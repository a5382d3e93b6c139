"""What a row costs beyond its own job: as processes, in a container, and 31 of them over four hosts; and how soon a row
that waits for GPUs has them.

    python bench/rows.py [--only WORD] [--pairs 3]      one JSON line a figure; exit code 1 where a goal is not met

Each row runs `true`. The cost of a row is what 11 rows, one after the other, take longer than one row, by ten.

- processes: rows of this machine, against `bash -c true`.
- container: jobs with `container:` on a Docker daemon of the tests' own, against `docker run` of the same image.
- hosts: 31 rows on four hosts (sshd of the tests, eight rows at once on each), and how long after the command the last
  of them has begun. All four are this machine.
- locks: two commands with a row for all simulated GPUs each, and how long after the end of one row's script the other
  has the GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.parts import dockerd, git  # noqa: E402
from tests.parts.sshd import Sshd  # noqa: E402

PROGRAM = str(Path(sys.executable).with_name("ci-tasks"))
MANY, HOSTS, ALL = 11, 4, 31
GOALS = {"processes": 0.3, "container": 0.5, "hosts": 2.0, "locks": 0.1}  # seconds
HELD_SECONDS = 4  # until the other command's row waits, too
# A host's own programs, not what a developer has put before them.
PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
JOB = """\
  e2e-test-{name}:
    runs-on: ubuntu-latest
    {container}
    strategy:
      matrix:
        info: [{rows}]
    steps:
      - uses: actions/checkout@v4
      - {{name: Execute, shell: bash, run: "bash tests/${{{{ matrix.info.test_file }}}}"}}
"""


class Person:
    """With a checkout of one row, many, and all, each as processes and in containers."""

    def __init__(self, directory: Path) -> None:
        self.checkout, self.begun = directory / "checkout", directory / "begun"
        self.begun.mkdir()
        self.hosts = directory / "hosts.yaml"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CI_TASKS_", "GIT_"))}
        self.env = {
            **kept,
            "CI_TASKS_HOME": str(directory / "home"),
            "CI_TASKS_HOSTS": str(self.hosts),
            "XDG_RUNTIME_DIR": str(directory),
        }
        jobs = []
        for count in (1, MANY, ALL):
            rows = ", ".join(f"{{test_file: row{number}.sh, num_gpus: 0}}" for number in range(count))
            for kind, container in (("plain", ""), ("inside", f"container: {{image: {dockerd.IMAGE}}}")):
                jobs.append(JOB.format(name=f"{kind}{count}", container=container, rows=rows))
        locked = ", ".join(f"{{test_file: locked{number}.sh, num_gpus: 8}}" for number in range(2))
        jobs.append(JOB.format(name="locked", container="", rows=locked))
        files = {".github/workflows/pr-test.yml": "name: PR Test\non: pull_request\njobs:\n" + "".join(jobs)}
        name = "tests/ci/gpu_lock_exec.py"  # without it there are no simulated GPUs
        files[name] = (ROOT / "examples/tiny-slime" / name).read_text()
        for number in range(2):
            files[f"tests/locked{number}.sh"] = f"sleep {HELD_SECONDS}\ndate +%s.%N > {directory}/{number}.ended\n"
        for number in range(ALL):
            files[f"tests/row{number}.sh"] = f"date +%s.%N > {self.begun}/{number}\necho done {number}\n"
        git.repository(self.checkout, files)

    def use(self, hosts: Mapping[str, Mapping[str, Any]]) -> None:
        self.hosts.write_text(json.dumps({"hosts": hosts}))

    def seconds(self, *words: str) -> float:
        return seconds([PROGRAM, "remote", *words], self.checkout, self.env)


def seconds(command: list[str], directory: Path | None = None, env: Mapping[str, str] | None = None) -> float:
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="processes, container, hosts or locks")
    parser.add_argument("--pairs", type=int, default=3, help="how often each is measured")
    words = parser.parse_args()
    os.environ["PATH"] = PROGRAMS
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each program compiles all its sources at every start
    missed = 0
    for part in (processes, container, hosts, locks):
        if words.only in part.__name__:
            with tempfile.TemporaryDirectory(prefix="rows-", ignore_cleanup_errors=True) as scratch:
                for figure in part(Path(scratch), words.pairs):
                    missed += not figure["met"]
                    print(json.dumps(figure), flush=True)
    return int(missed > 0)


def processes(scratch: Path, pairs: int) -> Iterator[dict[str, Any]]:
    person = Person(scratch)
    person.use({"box": {"kind": "local", "runtime": "none"}})
    yield from _rows(person, "plain", ["bash", "-c", "true"], pairs, "processes")


def container(scratch: Path, pairs: int) -> Iterator[dict[str, Any]]:
    person = Person(scratch)
    with dockerd.Daemon() as daemon:
        daemon.call("import", "-", dockerd.IMAGE, stdin=dockerd.image_tar())
        host = {"kind": "local", "runtime": "docker", "pull": "never", "env": daemon.environ}
        person.use({"box": host})
        run = ["docker", "--host", daemon.host, "run", "--rm", "--network", "host", dockerd.IMAGE]
        by_hand = [*run, "bash", "-c", "true"]
        yield from _rows(person, "inside", by_hand, pairs, "container")


def _rows(person: Person, kind: str, by_hand: list[str], pairs: int, name: str) -> Iterator[dict[str, Any]]:
    person.seconds("--host", "box", f"{kind}1")
    costs, hand, first = [], [], []
    for _ in range(pairs):
        one, many = (person.seconds("--host", "box", "--jobs", "1", f"{kind}{count}") for count in (1, MANY))
        first.append(one)
        costs.append((many - one) / (MANY - 1))
        hand.append(statistics.median(seconds(by_hand) for _ in range(5)))
    beyond = [cost - statistics.median(hand) for cost in costs]
    yield _figure(name, "seconds of a further row beyond the same by hand", beyond, by_hand=hand, one_row_whole=first)


def _figure(part: str, what: str, values: list[float], **more: list[float]) -> dict[str, Any]:
    """The median of the values is what counts."""
    median = statistics.median(values)
    others = {name: round(statistics.median(several), 3) for name, several in more.items()}
    spread = round(max(values) - min(values), 3)
    measured = {"ours": round(median, 3), "goal": GOALS[part], "met": median <= GOALS[part], **others, "spread": spread}
    return {"figure": f"{part}: {what}", **measured, "pairs": len(values)}


def hosts(scratch: Path, pairs: int) -> Iterator[dict[str, Any]]:
    person, names = Person(scratch), [f"box{number}" for number in range(HOSTS)]
    sshd = Sshd(scratch / "ssh")
    try:
        for name in names:
            sshd.start(name)
        person.env.update(sshd.env)
        person.use({name: {"kind": "ssh", "address": name, "runtime": "none"} for name in names})
        words = ["--host", ",".join(names), "--jobs", "8", f"plain{ALL}"]
        person.seconds(*words)
        lasts, wholes = [], []
        for _ in range(pairs):
            begun = time.time()
            wholes.append(person.seconds(*words))
            lasts.append(max(map(_stamp, person.begun.iterdir())) - begun)
    finally:
        subprocess.run([PROGRAM, "clean", "--host", ",".join(names)], env=person.env, capture_output=True, check=False)
        sshd.stop()
    what = f"seconds until the last of {ALL} rows on {HOSTS} hosts has begun"
    yield _figure("hosts", what, lasts, whole_command=wholes)


def locks(scratch: Path, pairs: int) -> Iterator[dict[str, Any]]:
    person, gaps = Person(scratch), []
    person.use({})
    for _ in range(pairs):
        command, quiet = [PROGRAM, "remote", "--host", "sim", "locked", "--only"], subprocess.DEVNULL
        where: dict[str, Any] = {"cwd": person.checkout, "env": person.env, "stdout": quiet, "stderr": quiet}
        rows = [subprocess.Popen([*command, f"locked{number}"], **where) for number in range(2)]
        if max(row.wait() for row in rows):
            raise SystemExit("locks: a row has not passed")
        events = [_events(file) for file in (scratch / "home/runs").glob("*/01/events.jsonl")]
        gaps.append(max(row["gpus"] for row in events) - min(map(_stamp, scratch.glob("*.ended"))))
    yield _figure("locks", "seconds from the end of a row's script until a row that waits for its GPUs has them", gaps)


def _events(file: Path) -> dict[str, float]:
    """When each happened."""
    return {event["event"]: event["t"] for event in map(json.loads, file.read_text().splitlines())}


def _stamp(file: Path) -> float:
    return float(file.read_text())


if __name__ == "__main__":
    sys.exit(main())
