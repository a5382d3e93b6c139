"""Looks at all processes of a run that may hang, and writes hang/facts.json and hang/stacks.txt into its directory.

A process of its own, which the run's agent starts and ends after a while: whatever hangs here, the run does not notice.
Each part has a limit of its own, and a part that could not be had is a line that says why.
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar

from .. import process_tree, processes, run_directory
from ..codec import RecordError, from_json, to_json
from ..containers.run_containers import RunContainer, RunContainers
from ..exit_gate import masked_record
from ..files import replace_file
from ..job_environment import secret_values
from ..probe.evidence import read_evidence
from ..probe.records import ProcessEvidence
from ..records import Status
from . import flight_recorder, inspector
from .facts import DeadProcess, HangFacts, Inspection, ProcessFacts, Reason, RecordedCollective
from .programs import PySpy, find_py_spy

SECONDS = 55.0  # for everything
INSPECT_SECONDS = 38.0  # for the processes of the host, or of one container
DUMP_SECONDS = 8.0  # for torch to write its flight recorder
MAX_OUTPUT = 12 << 20  # bytes from one container
MAX_DEAD = 64
# Reads the text of these modules, options and a program from standard input: nothing is written into the container.
_MODULES = ("procfs", "inspector")
_BOOT = """
import json, sys, types
source = sys.stdin.buffer
header = json.loads(source.readline())
package = sys.modules["hang"] = types.ModuleType("hang")
package.__path__ = []
for name, size in header["modules"]:
    module = sys.modules["hang." + name] = types.ModuleType("hang." + name)
    module.__package__ = "hang"
    exec(compile(source.read(size), name + ".py", "exec"), module.__dict__)
module.main(header["options"], source.read())
"""

T = TypeVar("T")


def collect(run_dir: str, reason: Reason, request: str) -> HangFacts:
    """Look, and write what is seen. Raises OSError where it cannot be written."""
    began = time.monotonic()
    paths = run_directory.RunDir(run_dir)
    before = _look_before(paths, reason, request)
    status = run_directory.read_status(paths)
    py_spy = find_py_spy(run_dir)  # checked once for all
    pids = _job_processes(paths, status)  # before there are any of ours
    threads = _Threads()
    looks = [threads.call(_look_at_host, pids, py_spy)]
    containers, problems = _containers(run_dir)
    looks += [threads.call(_look_into, container, py_spy) for container in containers]
    threads.join(began + SECONDS - DUMP_SECONDS - time.monotonic())
    facts = HangFacts(taken_at=round(time.time(), 3), reason=reason, request=request)
    for place, look in zip(["", *(container.name for container in containers)], looks):  # noqa: B905  # Python 3.8
        facts = _with_look(facts, place, look)
    facts = _since(_without_copies(facts), before)
    is_first = reason == "stall" and before is None  # of a job that may well go on; torch writes a line into its log
    dead, collectives, why = _evidence(paths, facts, 0.0 if is_first else DUMP_SECONDS)
    facts = replace(
        facts,
        seconds=round(time.monotonic() - began, 3),
        dead=dead,
        collectives=collectives,
        could_not=(*facts.could_not, *problems, *why),
    )
    _write(paths, masked_record(facts, secret_values(run_directory.read_plan(paths))))
    return facts


# -- the parts ---------------------------------------------------------------------------------------------------------


class _Threads:
    """Calls that run at the same time; each result is a list, empty for as long as there is none."""

    def __init__(self) -> None:
        self._threads: List[threading.Thread] = []

    def call(self, function: Callable[..., T], *args: Any) -> List[T]:
        results: List[T] = []
        thread = threading.Thread(target=lambda: results.append(function(*args)), daemon=True)
        thread.start()
        self._threads.append(thread)
        return results

    def join(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def _job_processes(paths: run_directory.RunDir, status: Status) -> List[int]:
    """As a run's end finds them: below its agent, by their mark."""
    pids = process_tree.of_job(status.pid) if status.pid else []
    pids += processes.of_run(paths.path, status.group)
    return sorted(set(pids) - {os.getpid(), os.getppid()})


def _look_at_host(pids: List[int], py_spy: PySpy) -> Inspection:
    found = inspector.Inspector(pids, py_spy.path, py_spy.why_not, seconds=INSPECT_SECONDS).inspect()
    found["ras"], why = inspector.ask_ras()
    found["could_not"] += ["NCCL: " + why] if why else []
    return _inspection(json.dumps(found), "the host")


def _look_into(container: RunContainer, py_spy: PySpy) -> Inspection:
    """What the inspector sees in a container, run by the Python that is there."""
    sources = [pkgutil.get_data(__name__, "%s.py" % name) or b"" for name in _MODULES]
    modules = [[name, len(source)] for name, source in zip(_MODULES, sources)]  # noqa: B905  # Python 3.8
    options = {"ras": True, "seconds": INSPECT_SECONDS, "why_no_py_spy": py_spy.why_not}
    header = {"modules": modules, "options": options}
    argv = [container.client.runtime, "exec", "-i", container.id, "python3", "-I", "-S", "-c", _BOOT]
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=container.client.env
        )
        out, err = process.communicate(
            b"".join([json.dumps(header).encode(), b"\n", *sources, py_spy.content]), INSPECT_SECONDS + 5
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Inspection(could_not=("container %s: %s" % (container.name, error),))
    if process.returncode or len(out) > MAX_OUTPUT:
        lines = err.decode("utf-8", "replace").strip().splitlines() or ["exit code %d" % process.returncode]
        return Inspection(could_not=("container %s: %s" % (container.name, lines[-1][:300]),))
    return _inspection(out.decode("utf-8", "replace"), "container %s" % container.name)


def _inspection(text: str, where: str) -> Inspection:
    try:
        return from_json(Inspection, text, where=where)
    except RecordError as error:
        return Inspection(could_not=(str(error)[:300],))


def _containers(run_dir: str) -> Tuple[List[RunContainer], List[str]]:
    own = RunContainers(run_dir)
    found = [container for container in own.find() if container.running]
    return found, list(own.problems)


def _with_look(facts: HangFacts, place: str, look: List[Inspection]) -> HangFacts:
    name = "container %s" % place if place else "the host"
    found = look[0] if look else Inspection(could_not=("%s: no answer in time" % name,))
    return replace(
        facts,
        seconds_between=found.seconds_between or facts.seconds_between,
        machine=found.machine or facts.machine,
        processes=facts.processes + tuple(replace(process, place=place) for process in found.processes),
        sockets=facts.sockets + tuple(found.sockets),
        locks=facts.locks + tuple(replace(lock, place=place) for lock in found.locks),
        sources={**found.sources, **facts.sources},
        ras={**facts.ras, place: found.ras} if found.ras else facts.ras,
        could_not=facts.could_not + tuple("%s: %s" % (place, why) if place else why for why in found.could_not),
    )


def _without_copies(facts: HangFacts) -> HangFacts:
    """Processes of podman's containers are below the agent, so they are seen on the host too."""
    inside = {(process.pid, process.start) for process in facts.processes if process.place}
    kept = (item for item in facts.processes if item.place or (item.namespace_pid, item.start) not in inside)
    return replace(facts, processes=tuple(kept))


def _look_before(paths: run_directory.RunDir, reason: Reason, request: str) -> Optional[HangFacts]:
    """What was seen earlier in the same silence of the log."""
    try:
        facts = run_directory.read_record(HangFacts, paths.hang) if reason == "stall" else None
    except (OSError, RecordError):
        return None
    return facts if facts is not None and (facts.reason, facts.request) == (reason, request) else None


def _since(facts: HangFacts, before: Optional[HangFacts]) -> HangFacts:
    """The facts with what each process has computed since that look."""
    if before is None:
        return facts
    earlier = {(item.place, item.pid, item.start): item.cpu_seconds for item in before.processes}
    processes = []
    for process in facts.processes:
        cpu = earlier.get((process.place, process.pid, process.start))
        processes.append(process if cpu is None else replace(process, cpu_since=round(process.cpu_seconds - cpu, 2)))
    seconds = max(0.0, round(facts.taken_at - before.taken_at, 3))
    return replace(facts, processes=tuple(processes), seconds_since=seconds)


def _evidence(
    paths: run_directory.RunDir, facts: HangFacts, dump_seconds: float
) -> Tuple[Tuple[DeadProcess, ...], Tuple[RecordedCollective, ...], List[str]]:
    """(ranks that are no more, torch's last collectives, why not); without seconds torch is not asked."""
    alive = {(process.pid, process.start) for process in facts.processes if not process.ended}
    evidence = read_evidence(paths.evidence)
    seen = evidence.processes if evidence is not None else ()
    gone = [item for item in seen if item.rank is not None and (item.pid, item.start) not in alive]
    dead = tuple(_dead(item) for item in gone[-MAX_DEAD:])
    envs = [process.env for process in facts.processes if not process.ended]
    dumped, could_not = flight_recorder.dumps(envs, dump_seconds) if dump_seconds else ([], [])
    found = []
    for rank, content in dumped:
        try:
            collective = flight_recorder.newest_collective(content, rank)
        except flight_recorder.UnsafePickle as error:
            could_not.append("rank %d: its flight recorder is not read: %s" % (rank, error))
            continue
        found += [collective] if collective else []
    return dead, tuple(found), could_not


def _dead(item: ProcessEvidence) -> DeadProcess:
    last = item.exceptions[-1].chain[0] if item.exceptions and item.exceptions[-1].chain else None
    error = "%s: %s" % (last.type, last.message.split("\n")[0][:300]) if last else ""
    return DeadProcess(pid=item.pid, env=item.env, argv=item.argv[:20], how=item.end, error=error)


# -- the files ---------------------------------------------------------------------------------------------------------


def _write(paths: run_directory.RunDir, facts: HangFacts) -> None:
    directory = os.path.dirname(paths.hang)
    if os.path.islink(directory) or (os.path.exists(directory) and not os.path.isdir(directory)):
        os.unlink(directory)
    os.makedirs(directory, exist_ok=True)
    replace_file(paths.hang_stacks, "\n".join(_readable(facts)).encode("utf-8", "backslashreplace"))
    replace_file(
        paths.hang, to_json(facts, compact=True).encode("utf-8", "backslashreplace")
    )  # the last: it is complete


def _readable(facts: HangFacts) -> Iterator[str]:
    for process in facts.processes:
        yield "=== %s" % _title(process)
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


def _title(process: ProcessFacts) -> str:
    rank = "rank %s, " % process.env["RANK"] if "RANK" in process.env else ""
    place = " in %s" % process.place if process.place else ""
    return "%spid %d%s, state %s: %s" % (
        rank,
        process.pid,
        place,
        process.state,
        " ".join(process.argv) or process.name,
    )


def _lines(text: str) -> Iterator[str]:
    try:
        threads = json.loads(text)
        for thread in threads:
            yield "Thread %s %s" % (thread.get("os_thread_id"), thread.get("thread_name"))
            yield from ("  %(name)s (%(filename)s:%(line)s)" % frame for frame in thread["frames"])
    except (ValueError, TypeError, KeyError, AttributeError):
        yield text.strip()


def main(argv: Sequence[str]) -> int:
    """`… hang RUN_DIR REASON REQUEST`."""
    reasons: Dict[str, Reason] = {"request": "request", "stall": "stall", "timeout": "timeout"}
    collect(argv[0], reasons.get(argv[1], "request"), argv[2] if len(argv) > 2 else "")
    sys.stdout.flush()
    os._exit(0)  # a thread may hang in a container daemon
