"""What `bench/faults.py` looks at when a run is over: its record, its log, and what is left of it anywhere."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from fault_cases import OWN, Case
from fault_daemon import Unreached, until
from fault_world import MADE, World, job_says


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
    if not world.precious.exists():
        problems.append("a directory that is none of ours is gone")
    if b"\x1b]" in (world.path / "client").read_bytes():
        problems.append("a control sequence of the job reached the terminal")
    return problems


def problems_of_row(case: Case, world: World, run: Path) -> list[str]:
    record = json.loads((run / "record.json").read_text())
    right, problems = wanted(case, world), []
    if case.names_left and not record["left"]:
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
    found = [words_of(pid) for pid in world.processes(mark)]
    found += [words_of(pid) for pid in commands(world.survivor)]
    runs = world.there / "runs"
    found += [str(path.relative_to(world.there)) for path in runs.rglob("*")][:5] if runs.exists() else []
    found += world.locked()
    if world.daemon is not None:
        found += world.daemon.containers(world.there)
    return found


def commands(word: str) -> list[int]:
    """The processes with this in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
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
    partial = [path.name for path in world.there.glob("agents/*") if path.suffix != ".pyz"]
    return problems + [f"left after clean: {name}" for name in [*incoming, *partial]]


def words_of(pid: int) -> str:
    try:
        return f"process {pid} {Path(f'/proc/{pid}/cmdline').read_bytes()[:120]!r}"
    except OSError:
        return f"process {pid}"
