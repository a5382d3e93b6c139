"""Faults in every phase of a run on a box: is the status right, is the log what the job wrote, is nothing left?

Real sshd behind a proxy, real git, and for a third of the trials a real dockerd of our own, whose daemon, registry and
containers the trials share. Each trial brings one run into one phase (a pack half sent, GPUs held by another, an image
being pulled or a container made, a job that writes, artifacts half home), does one thing to it, lets it come to its
end, and looks at everything: `fault_cases.py` has the table of what must come of it. Some faults come to several rows
at once, and some are a daemon that hangs.

    python bench/faults.py [--trials 200] [--seed N] [--only FAULT[:PHASE]] [--docker | --no-docker] [--keep]

One JSON line for each trial, with what was wrong, then their sums. A trial that was wrong keeps its directory; with its
seed, `--trials 1 --seed N` does it again. Exit code 1 if one was wrong. Needs root (small disks are tmpfs), sshd and,
without `--no-docker`, a Docker daemon. The host's clock is stepped by a small preloaded library for all that the host's
login starts; without a C compiler those trials are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.fault_cases import CASES, OWN, Case
from bench.fault_world import COMPILER, MADE, STOP, Daemon, Unreached, World, job_says, until
from ci_tasks.records import EXIT_CODES
from tests.parts.processes import command_lines

AT_ONCE = 2
RETRIES = 5  # of a trial whose run was quicker than its fault
SMALL_DISK_MB = 64
JOBS_SECONDS = 90.0


def main() -> int:
    options = arguments()
    if os.geteuid() != 0:
        sys.exit("needs root: small disks, and a Docker daemon of our own")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where our caller ignores it: clients inherit that
    seed = options.seed if options.seed is not None else random.randrange(1 << 30)
    fault, _, phase = options.only.partition(":")
    cases = [case for case in CASES if fault in ("", case.fault) and phase in ("", case.phase)]
    random.Random(0).shuffle(cases)  # those in containers, one at a time, with others between them
    if not COMPILER:
        print("not exercised: clock_step, without a C compiler for its library", file=sys.stderr)
        cases = [case for case in cases if case.fault != "clock_step"]
    with contextlib.ExitStack() as stack:
        daemon = None if options.docker is False else Daemon()
        if daemon:
            stack.enter_context(daemon)
        cases = [case for case in cases if daemon or not case.docker]

        def perform(number: int) -> bool | None:
            case, boxed = choose(cases, number, options, daemon)
            return one(case, number, daemon if boxed else None, options.keep)

        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        try:
            right = [*pool.map(perform, range(seed, seed + options.trials) if cases else ())]
        except BaseException:
            STOP.set()
            raise
    wrong = right.count(False)
    print(json.dumps({"trials": len(right), "right": right.count(True), "wrong": wrong, "seed": seed}), flush=True)
    return 1 if wrong else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, help="of the first trial; the next have the next numbers")
    parser.add_argument("--only", default="", metavar="FAULT[:PHASE]")
    parser.add_argument("--docker", action=argparse.BooleanOptionalAction, help="all trials, or none, in a container")
    parser.add_argument("--keep", action="store_true", help="the directories of right trials too")
    return parser.parse_args()


# -- all trials, two at a time; those in containers one at a time ------------------------------------------------------


def choose(cases: list[Case], number: int, options: argparse.Namespace, daemon: Daemon | None) -> tuple[Case, bool]:
    """Every case comes again and again in turn; the seed alone says which, and whether in a container."""
    chance = random.Random(number)
    case = cases[number % len(cases)]
    if case.docker is not None:
        return case, case.docker
    return case, daemon is not None and (options.docker is True or chance.random() < 0.2)


def one(case: Case, number: int, daemon: Daemon | None, keep: bool) -> bool | None:
    """Whether it was right; None if it was stopped, or missed its phase each time."""
    path, begun, missed = Path(tempfile.mkdtemp(prefix=f"ci-tasks-fault-{number}-")), time.monotonic(), 0
    problems, notes = list[str](), list[str]()
    try:
        with daemon.busy if daemon is not None else contextlib.nullcontext():
            while not STOP.is_set() and missed < RETRIES:
                where = path / str(missed)
                where.mkdir()
                chance, steps_clock = random.Random(f"{number}.{missed}"), case.fault == "clock_step"
                try:
                    problems, notes = trial(case, World(where, chance, daemon, steps_clock=steps_clock, rows=case.rows))
                    break
                except Missed:
                    missed += 1
    except Exception as error:
        problems = [f"{type(error).__name__}: {error}"]
    is_right = None if STOP.is_set() or missed == RETRIES else not problems
    if is_right is not False and not keep:
        shutil.rmtree(path, ignore_errors=True)
    what = {"seed": number, "fault": case.fault, "phase": case.phase, "docker": daemon is not None, "right": is_right}
    more = {"notes": notes, "missed": missed, "wrong": problems, "directory": str(path) if path.exists() else ""}
    found = {name: value for name, value in more.items() if value}
    print(json.dumps({**what, "seconds": round(time.monotonic() - begun, 1), **found}), flush=True)
    return is_right


class Missed(Exception):
    """The run was past the phase before the fault could come."""


# -- one trial -------------------------------------------------------------------------------------------------------


def trial(case: Case, world: World) -> tuple[list[str], list[str]]:
    """What was wrong, and what is worth noting."""
    world.code = world.chance.choice([0, 3])
    problems: list[str] = []
    with world:
        if case.fault == "client_disk":
            world.make_small(world.home, SMALL_DISK_MB)
        if case.fault == "host_disk":
            world.make_small(world.there, SMALL_DISK_MB)
        world.prepare()
        try:
            with case.reach(world):
                case.inflict(world, case.phase)
        except Unreached as unreached:
            if "quicker" in str(unreached) or "no docker client" in str(unreached):
                raise Missed from None
            problems.append(str(unreached))
        problems += finish(case, world)
        problems += problems_of(case, world)
        problems += clean(case, world)
        world.road.restore()
        world.ssh.stop()
        with contextlib.suppress(Unreached):
            until(lambda: not world.processes(), "everything of the box ends", 10)
        problems += [f"still alive on the box: {line!r}" for line in command_lines(world.processes())]
        if problems:
            (world.path / "problems").write_text("\n".join(problems) + "\n")
    return problems, world.notes


def finish(case: Case, world: World) -> list[str]:
    """The client to its end, the fault to its end, the run home."""
    code = world.finish()
    if world.after is not None:
        world.after()
    right = case.codes or tuple(sorted({EXIT_CODES[status] for status in wanted(case, world)}))
    problems = [] if code in right else [f"exit code {code}, not {' or '.join(map(str, right))}"]
    if case.home and not world.runs_here():
        return [*problems, "no run to come back to"]
    if case.home:
        home_words = world.chance.choice(case.home)
        world.notes.append(f"then {home_words}")
        deadline = time.monotonic() + JOBS_SECONDS
        while not is_home(world) and time.monotonic() < deadline:
            world.ci_tasks(*home_words.split())
        world.ci_tasks("runs", "--json")  # a log that was followed to its end makes no record
    return problems


def is_home(world: World) -> bool:
    runs = world.runs_here()
    return bool(runs) and all(json.loads((run / "remote.json").read_text()).get("complete") for run in runs)


# -- what is looked at when a run is over: its record, its log, and what is left of it anywhere -----------------------


def wanted(case: Case, world: World) -> list[str]:
    own = "passed" if world.code == 0 else "failed"
    return [own if status == OWN else status for status in case.ends]


def problems_of(case: Case, world: World) -> list[str]:
    runs = world.runs_here()
    if len(runs) != world.rows or not all((run / "record.json").exists() for run in runs):
        return [f"{len(runs)} runs, not {world.rows} with a record; the client said: {world.output()[-300:]!r}"]
    problems = [problem for run in runs for problem in problems_of_row(case, world, run)]
    problems += [f"left here: {path.relative_to(world.home)}" for path in world.home.rglob("*") if is_temporary(path)]
    problems += [f"left on the box: {what}" for what in left(world)] if not case.stays else []
    return problems


def problems_of_row(case: Case, world: World, run: Path) -> list[str]:
    record = json.loads((run / "record.json").read_text())
    right, problems = wanted(case, world), []
    if case.names_left and (run / "docker.json").exists() and not record["left"]:
        problems.append("the record does not say what is left")
    if record["status"] not in right:
        problems.append(f"{record['status']} ({record['reason']}), not {' or '.join(right)}")
    if case.exit_code is not None and record["exit_code"] != case.exit_code:
        problems.append(f"the job's exit code is {record['exit_code']}, not {case.exit_code}")
    problems += wrong_log(run, record, whole=record["status"] in ("passed", "failed") and case.exit_code is None)
    seconds = record["timings"]["seconds"]
    if seconds is not None and not 0 <= seconds < 600:
        problems.append(f"the run took {seconds} s")
    return problems


def wrong_log(run: Path, record: dict[str, Any], whole: bool) -> list[str]:
    """The log here is what the host says it is, and in it is what the job wrote, or its beginning."""
    log = (run / "log").read_bytes() if (run / "log").exists() else b""
    problems = []
    digest = record["log"]["sha256"]
    if digest is not None and (len(log), hashlib.sha256(log).hexdigest()) != (record["log"]["bytes"], digest):
        problems.append(f"the log here ({len(log)} bytes) is not the log there ({record['log']['bytes']} bytes)")
    expected = job_says()
    begun = log.find(b"line 1 of")
    if whole and expected not in log:
        problems.append("the log lacks what the job wrote")
    elif begun >= 0:
        found = log[begun : begun + len(expected)]
        # A job that was ended has written the first lines; a full disk may have taken a part of the last.
        lines = [line for line in found.splitlines(keepends=True) if b" of the job: " in line]
        if not expected.startswith(b"".join(lines)):
            problems.append("the log has other lines than the job wrote")
    made = run / "artifacts/made"
    if whole and (not made.exists() or made.read_bytes().count(b"\n") != MADE):
        problems.append("the artifact is not here whole")
    return problems


def is_temporary(path: Path) -> bool:
    name = path.name
    return name.endswith(".tmp") or name.startswith((".collected-", "client-id.")) or name == "filler"


def left(world: World) -> list[str]:
    """Of any run, on the box."""
    mark = f"CI_TASKS_RUN_DIR={world.there}/"
    with contextlib.suppress(Unreached):
        until(lambda: not world.processes(mark) and not world.locked(), "the last processes end", 3)
    found = command_lines(world.processes(mark))
    runs = world.there / "runs"
    found += [str(path.relative_to(world.there)) for path in runs.rglob("*")][:5] if runs.exists() else []
    found += world.locked()
    if world.daemon is not None:
        found += world.daemon.containers(world.there)
    return found


def clean(case: Case, world: World) -> list[str]:
    """`clean` succeeds; afterwards there is nothing, whatever the fault."""
    problems = []
    code = world.ci_tasks("clean", "--host", "box", *(["--all"] if case.stays else []))
    if code != 0:
        problems.append(f"clean: exit code {code}")
    if case.stays:
        problems += [f"left after clean --all: {what}" for what in left(world)]
    incoming = [path.name for path in world.there.glob("store.git/incoming-*")]
    partial = [path.name for path in world.there.glob("agents/*") if not re.fullmatch("[0-9a-f]{64}", path.name)]
    return problems + [f"left after clean: {name}" for name in [*incoming, *partial]]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
