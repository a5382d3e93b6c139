"""Looks at all processes of a run that may hang, and writes hang/facts.json and hang/stacks.txt into its directory.

A process of its own, which the run's agent starts and ends after a while: whatever hangs here, the run does not notice.
Each part has a limit of its own, and a part that failed is a line that says why.
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Callable, Dict, Iterator, List, Sequence, Tuple

from .. import processes, run_directory
from ..codec import RecordError, decode, from_json, to_json
from ..containers.run_containers import RunContainer, RunContainers
from ..exit_gate import masked_record
from ..files import replace_file
from ..job_environment import secret_values
from ..probe.evidence import read_evidence
from . import flight_recorder, inspector
from .facts import DeadProcess, HangFacts, Reason, RecordedCollective
from .programs import PySpy, find_py_spy

SECONDS = 55.0  # for everything
DUMP_SECONDS = 8.0  # for torch to write its flight recorder
MAX_OUTPUT = 12 << 20  # bytes from one container
MAX_DEAD = 64
# Reads a header, the inspector's text and a program from standard input: nothing is written into the container.
_BOOT = """
import json, sys
size, why_no_py_spy = json.loads(sys.stdin.buffer.readline())
names = {"__name__": "inspector"}
exec(compile(sys.stdin.buffer.read(size), "inspector.py", "exec"), names)
names["main"](why_no_py_spy, sys.stdin.buffer.read())
"""


def collect(run_dir: str, reason: Reason, request: str) -> HangFacts:
    """Look, and write what is seen. Raises OSError if it cannot be written."""
    began = time.monotonic()
    paths = run_directory.RunDir(run_dir)
    before = _facts_before(paths, reason, request)
    py_spy = find_py_spy(run_dir)  # checked once for all
    pids = _job_processes(paths)  # before there are any of ours
    own = RunContainers(run_dir)
    looks: Dict[str, Callable[[], HangFacts]] = {"": partial(_look_at_host, pids, py_spy)}
    looks.update({each.name: partial(_look_into, each, py_spy) for each in own.find() if each.running})
    seen = _at_once(looks, SECONDS - DUMP_SECONDS)
    inside = {(item.pid, item.start) for place, one in seen.items() if place for item in one.processes}
    facts = HangFacts(
        taken_at=round(time.time(), 3),
        reason=reason,
        request=request,
        seconds_between=max(one.seconds_between for one in seen.values()),
        seconds_since=max(0.0, round(time.time() - before.taken_at, 3)) if before.processes else 0.0,
        machine=os.uname().machine,
        # Processes of podman's containers are below the agent, so the host shows them too.
        processes=tuple(
            replace(item, place=place, cpu_since=_cpu_since(before, place, item.pid, item.start, item.cpu_seconds))
            for place, one in seen.items()
            for item in one.processes
            if place or (item.namespace_pid, item.start) not in inside
        ),
        sockets=tuple(socket for one in seen.values() for socket in one.sockets),
        locks=tuple(replace(lock, place=place) for place, one in seen.items() for lock in one.locks),
        sources={path: text for one in seen.values() for path, text in one.sources.items()},
        ras={place: one.ras[""] for place, one in seen.items() if one.ras.get("")},
    )
    # torch writes a line into the log of a job that may well go on: it is not asked when the silence has just begun.
    is_asked = reason != "stall" or bool(before.processes)
    collectives, problems = _collectives(facts) if is_asked else ((), [])
    could_not = ["%s: %s" % (place, why) if place else why for place, one in seen.items() for why in one.could_not]
    facts = replace(
        facts,
        seconds=round(time.monotonic() - began, 3),
        dead=_dead(paths, facts),
        collectives=collectives,
        could_not=(*could_not, *own.problems, *problems),
    )
    _write(paths, masked_record(facts, secret_values(run_directory.read_plan(paths))))
    return facts


# -- the looks ---------------------------------------------------------------------------------------------------------


def _at_once(looks: Dict[str, Callable[[], HangFacts]], seconds: float) -> Dict[str, HangFacts]:
    pool = ThreadPoolExecutor(len(looks))
    futures = {place: pool.submit(look) for place, look in looks.items()}
    wait(futures.values(), seconds)
    late = HangFacts(could_not=("no answer in time",))
    return {place: future.result() if future.done() else late for place, future in futures.items()}


def _job_processes(paths: run_directory.RunDir) -> List[int]:
    """As a run's end finds them: below its agent, and by their mark."""
    status = run_directory.read_status(paths)
    pids = processes.of_job(status.pid) if status.pid else []
    return sorted({*pids, *processes.of_run(paths.path, status.group)} - {os.getpid(), os.getppid()})


def _look_at_host(pids: List[int], py_spy: PySpy) -> HangFacts:
    found = inspector.with_ras(inspector.Inspector(pids, py_spy.path, py_spy.why_not).inspect())
    return decode(HangFacts, found, where="the host")


def _look_into(container: RunContainer, py_spy: PySpy) -> HangFacts:
    """What the inspector sees in a container, run by the Python that is there."""
    source = pkgutil.get_data(__name__, "inspector.py") or b""
    header = json.dumps([len(source), py_spy.why_not]).encode() + b"\n"
    argv = [container.client.runtime, "exec", "-i", container.id, "python3", "-I", "-S", "-c", _BOOT]
    given = header + source + py_spy.content
    try:
        done = subprocess.run(argv, input=given, capture_output=True, timeout=SECONDS, env=container.client.env)
        if done.returncode == 0 and len(done.stdout) <= MAX_OUTPUT:
            return from_json(HangFacts, done.stdout.decode("utf-8", "replace"), where="inspector")
    except (OSError, subprocess.TimeoutExpired, RecordError) as error:
        return HangFacts(could_not=(str(error)[:300],))
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["exit code %d" % done.returncode]
    return HangFacts(could_not=(lines[-1][:300],))


def _facts_before(paths: run_directory.RunDir, reason: Reason, request: str) -> HangFacts:
    """What was seen earlier in the same silence of the log."""
    with suppress(OSError, RecordError):
        facts = run_directory.read_record(HangFacts, paths.hang)
        if facts is not None and reason == "stall" and (facts.reason, facts.request) == (reason, request):
            return facts
    return HangFacts()


def _cpu_since(before: HangFacts, place: str, pid: int, start: int, now: float) -> "float | None":
    """The seconds of the processor that a process has used since that look."""
    same = (item for item in before.processes if (item.place, item.pid, item.start) == (place, pid, start))
    return next((round(now - item.cpu_seconds, 2) for item in same), None)


def _collectives(facts: HangFacts) -> Tuple[Tuple[RecordedCollective, ...], List[str]]:
    """(the last collective of each rank, why not) by torch's flight recorder."""
    envs = [process.env for process in facts.processes if not process.ended]
    dumped, could_not = flight_recorder.dumps(envs, DUMP_SECONDS)
    found = []
    for rank, content in dumped:
        try:
            found.append(flight_recorder.newest_collective(content, rank))
        except flight_recorder.UnsafePickle as error:
            could_not.append("rank %d: its flight recorder is not read: %s" % (rank, error))
    return tuple(collective for collective in found if collective), could_not


def _dead(paths: run_directory.RunDir, facts: HangFacts) -> Tuple[DeadProcess, ...]:
    """Ranks that are no more, as the probe saw them."""
    alive = {(process.pid, process.start) for process in facts.processes if not process.ended}
    evidence = read_evidence(paths.evidence)
    dead = []
    for item in evidence.processes if evidence is not None else ():
        if item.rank is not None and (item.pid, item.start) not in alive:
            last = item.exceptions[-1].chain[0] if item.exceptions and item.exceptions[-1].chain else None
            error = "%s: %s" % (last.type, last.message.split("\n")[0][:300]) if last else ""
            dead.append(DeadProcess(pid=item.pid, env=item.env, argv=item.argv[:20], how=item.end, error=error))
    return tuple(dead[-MAX_DEAD:])


# -- the files ---------------------------------------------------------------------------------------------------------


def _write(paths: run_directory.RunDir, facts: HangFacts) -> None:
    directory = os.path.dirname(paths.hang)
    if os.path.islink(directory):
        os.unlink(directory)
    os.makedirs(directory, exist_ok=True)
    replace_file(paths.hang_stacks, "\n".join(_readable(facts)).encode("utf-8", "backslashreplace"))
    # The last: it is complete.
    replace_file(paths.hang, to_json(facts, compact=True).encode("utf-8", "backslashreplace"))


def _readable(facts: HangFacts) -> Iterator[str]:
    for process in facts.processes:
        rank = "rank %s, " % process.env["RANK"] if "RANK" in process.env else ""
        place = " in %s" % process.place if process.place else ""
        title = " ".join(process.argv) or process.name
        yield "=== %spid %d%s, state %s: %s" % (rank, process.pid, place, process.state, title)
        for thread in process.threads:
            yield "thread %d %s: state %s %s" % (thread.tid, thread.name, thread.state, thread.wchan)
        for stack in process.stacks:
            yield "--- stacks by %s" % stack.by
            yield from _lines(stack.text)
        yield ""
    for place, text in facts.ras.items():
        yield "=== NCCL %s\n%s" % (place, text)
    yield from ("could not: %s" % line for line in facts.could_not)
    yield ""


def _lines(text: str) -> Iterator[str]:
    try:
        for thread in json.loads(text):
            yield "Thread %s %s" % (thread.get("os_thread_id"), thread.get("thread_name"))
            yield from ("  %(name)s (%(filename)s:%(line)s)" % frame for frame in thread["frames"])
    except (ValueError, TypeError, KeyError, AttributeError):
        yield text.strip()


def main(argv: Sequence[str]) -> int:
    """`… hang RUN_DIR REASON REQUEST`."""
    reasons: Dict[str, Reason] = {"request": "request", "stall": "stall", "timeout": "timeout"}
    collect(argv[0], reasons.get(argv[1], "request"), argv[2] if len(argv) > 2 else "")
    os._exit(0)  # a thread may hang in a container daemon
