"""Why a run hangs: what its processes do, read from outside while it runs. Changes nothing of the job.

The agent looks on request, if the log is silent for long, and before the timeout ends the run. A request is a file in
the run directory; the agent sees it with its next heartbeat, also on another node than the one that it was written on.
The look is a process of the agent's (`collect`), which it ends after a minute: whatever hangs there, the run does not
notice. It writes hang/facts.json and hang/stacks.txt; a part that failed is a line that says why. `inspector` reads the
processes of one machine or container. What they mean is decided on the client.

torch's flight recorder is asked for a dump, which is a pickle of the job's: no name in it is looked up.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from dataclasses import field, replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Literal, Mapping, Optional, Sequence, Tuple, cast

from . import processes, run_directory
from .codec import RecordError, from_json, masked_record, to_json
from .containers import RunContainers
from .evidence import ProcessEvidence, read_evidence
from .files import content_of, replace_file
from .quick_dataclass import dataclass
from .run_directory import log_traceback

MAX_SECONDS = 60.0  # for a look
BEFORE_TIMEOUT = 25.0  # seconds before the end by timeout
SHORTEST_TIMEOUT = 120.0  # a shorter one leaves no time for a look
_PAUSE = 10.0  # seconds from the start of a look to one that is asked for: the job can ask too

Reason = Literal["request", "stall", "timeout"]


@dataclass(frozen=True)
class ProcessFacts:
    """A process of the run, which was there in both looks or is gone. `place` is its container, empty for none; pids
    count there. `namespace_pid` is its number in its innermost namespace. `env` are the variables that say its rank.

    `state` is that of its main thread, R if it was another one in the first look; `wchan` is the function of the kernel
    in which that thread waits. `held` has such a function for each thread that was in uninterruptible sleep (state D)
    all the time between the looks. `stacks` are those of its threads as faulthandler writes them, the main thread last.
    `same_stacks`: its main thread was in the same functions of the program in both looks, None if there was one look.
    `main_cpu` and `cpu` are the shares of a processor that its main thread and all of it used between the looks.

    `end`, of a rank's process that is gone: how it ended, as the probe saw it."""

    pid: int
    ppid: int
    start: int = 0
    namespace_pid: int = 0
    place: str = ""
    argv: Tuple[str, ...] = ()
    state: str = ""
    wchan: str = ""
    held: Tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    python: bool = False
    stacks: str = ""
    same_stacks: Optional[bool] = None
    main_cpu: float = 0.0
    cpu: float = 0.0
    end: str = ""


@dataclass(frozen=True)
class RecordedCollective:
    """The last collective, or message, that a rank has started, by torch's flight recorder: its `number` in the process
    `group`. `operation` as torch names it, `all_reduce` or `recv 0<-1` (places in the
    group). `state` is scheduled until its GPU comes to it, then started, if torch notes times; and completed."""

    rank: int
    operation: str
    number: int
    state: str = ""
    group: str = ""


@dataclass(frozen=True)
class HangFacts:
    """Everything that was seen, of a run or by `inspector` in one place; it took `seconds`. `lines` are those of the
    program that frames are at, by FILE:NUMBER. `ras` is NCCL's answer, by container. `could_not` has a line for each
    part that failed."""

    taken_at: float = 0.0
    reason: Reason = "request"
    request: str = ""
    seconds: float = 0.0
    processes: Tuple[ProcessFacts, ...] = ()
    gone: Tuple[ProcessFacts, ...] = ()
    lines: Mapping[str, str] = field(default_factory=dict)
    ras: Mapping[str, str] = field(default_factory=dict)
    collectives: Tuple[RecordedCollective, ...] = ()
    could_not: Tuple[str, ...] = ()


class HangWatcher:
    """Looks after `silence` seconds without output, and before a timeout of `timeout` seconds."""

    def __init__(self, paths: run_directory.RunDir, silence: float, timeout: float) -> None:
        self._paths, self._silence = paths, silence
        self._before_timeout = BEFORE_TIMEOUT if timeout >= SHORTEST_TIMEOUT else 0.0
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        self._began, self._request, self._looks_at_silence = 0.0, "", 0

    @property
    def is_looking(self) -> bool:
        return self._process is not None

    def poll(self, silent: float, left: float) -> None:
        """With each heartbeat: end a look that takes too long, begin one that is due. The log is silent for `silent`
        seconds, `left` are those until the timeout. A silence is looked at again after twice and four times as long."""
        if self._process and (self._process.poll() is not None or time.monotonic() > self._began + MAX_SECONDS):
            self._end("no end within %.0f s" % MAX_SECONDS)
        if silent < self._silence:
            self._looks_at_silence = 0
        request = content_of(self._paths.hang_request, 101).decode("ascii", "replace")
        if self.is_looking:
            return
        if request != self._request and _is_request(request) and time.monotonic() > self._began + _PAUSE:
            self._request = request
            self._look("request", request)
        elif left < self._before_timeout:
            self._before_timeout = 0.0  # once
            self._look("timeout")
        elif silent >= self._silence * 2**self._looks_at_silence:
            self._looks_at_silence += 1
            self._look("stall")

    def close(self) -> None:
        """The job is over: nothing is left to be seen."""
        self._end("the run has ended")

    def _look(self, reason: Reason, request: str = "") -> None:
        argv = [sys.executable, "-I", "-S", self._paths.agent, "hang", self._paths.path, reason, request]
        null = subprocess.DEVNULL
        try:
            self._process = processes.start(argv, None, "/", stdin=null, stdout=null, stderr=null)
            self._began = time.monotonic()
        except OSError as error:
            self._log("could not start: %s" % error.strerror)

    def _end(self, why: str) -> None:
        """Forget the look; end it if it has not ended by itself. A failure of its own is logged by itself."""
        process, self._process = self._process, None
        code = process.poll() if process is not None else 0
        if process is not None and code is None:
            processes.end_program(process)
        if code != 0:
            self._log("failed: %s" % (why if code is None else "exit code %d" % code))

    def _log(self, what: str) -> None:
        log_traceback(self._paths.path, "hang", RuntimeError("inspecting the processes: %s" % what))


class NoLook(Exception):
    """Why nothing was seen, for a person."""


def wait_for_look(run_dir: str, request: str, is_given_up: Callable[[], bool] = lambda: False) -> HangFacts:
    """Ask the agent of a run on this host for a look, and wait for what it has seen. Raises NoLook."""
    if not _is_request(request):
        raise NoLook("no request: %.100r" % request)
    paths, until = run_directory.RunDir(run_dir), time.monotonic() + MAX_SECONDS + 10.0
    while time.monotonic() < until and not is_given_up():
        facts = facts_of(paths)
        if facts is not None and facts.request == request:
            return facts
        status = run_directory.read_status_if_readable(paths)
        if not status.exists or status.has_ended:
            raise NoLook("the run %s" % ("has ended" if status.has_ended else "has not started"))
        try:
            if content_of(paths.hang_request).decode("ascii", "replace") != request:
                replace_file(paths.hang_request, request.encode("ascii"))
        except OSError as error:
            raise NoLook("the request could not be written: %s" % error) from None
        time.sleep(0.2)
    raise NoLook("its agent has not answered within %.0f s" % (MAX_SECONDS + 10.0))


def facts_of(paths: run_directory.RunDir) -> Optional[HangFacts]:
    """What was seen last of a run."""
    return run_directory.read_if_readable(HangFacts, paths.hang)


def _is_request(text: str) -> bool:
    return text.isascii() and text.isalnum() and len(text) <= 100


# -- the look ----------------------------------------------------------------------------------------------------------

SECONDS = 45.0  # for the processes
DUMP_SECONDS = 8.0  # for torch to write its flight recorder
MAX_OUTPUT = 12 << 20  # bytes of one inspector
MAX_DUMP = 4 << 20  # bytes of a flight recorder
_MOST_AT_ONCE = 32  # places that are looked at: the host, and each container


def collect(run_dir: str, reason: str, request: str) -> None:
    """Look, and write what is seen. Raises OSError if it cannot be written."""
    from concurrent.futures import ThreadPoolExecutor  # an agent loads this module, and looks in another process

    began, paths = time.monotonic(), run_directory.RunDir(run_dir)
    status, own = run_directory.read_status(paths), RunContainers(run_dir)
    # As a run's end finds them: below its agent, and by their mark.
    pids = {*(processes.of_job(status.pid) if status.pid else ()), *processes.of_run(paths.path, status.group)}
    probed = read_evidence(paths.evidence).processes  # before the look: what starts meanwhile is not dead
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        looks = {"": pool.submit(look, [sys.executable], sorted(pids - {os.getpid(), os.getppid()}))}
        for each in own.find():
            if each.running:
                argv = [each.client.runtime, "exec", "--interactive", each.id, "python3"]
                looks[each.name] = pool.submit(look, argv, None, each.client.env)
        seen = {place: each.result() for place, each in looks.items()}
    found = tuple(completed(seen, probed))
    collectives, problems = recorded_collectives([process.env for process in found], DUMP_SECONDS)
    could_not = ["%s: %s" % (place, why) if place else why for place, one in seen.items() for why in one.could_not]
    facts = HangFacts(
        taken_at=round(time.time(), 3), reason=cast("Reason", reason), request=request,
        seconds=round(time.monotonic() - began, 3), processes=found, gone=tuple(_dead(probed, found)),
        lines={place: text for one in seen.values() for place, text in one.lines.items()},
        ras={place: one.ras[""] for place, one in seen.items() if one.ras}, collectives=collectives,
        could_not=(*could_not, *own.problems, *problems),
    )  # fmt: skip
    _write(paths, masked_record(facts, run_directory.secret_values(run_directory.read_plan(paths))))


def look(python: List[str], pids: Optional[List[int]], env: Optional[Mapping[str, str]] = None) -> HangFacts:
    """What the inspector sees where `python` runs."""
    import pkgutil

    argv = [*python, "-I", "-S", "-c", (pkgutil.get_data(__name__, "inspector.py") or b"").decode()]
    answer = processes.run_program(argv, SECONDS, env, stdin=json.dumps(pids).encode(), most=MAX_OUTPUT)
    try:
        if answer.code == 0:
            return from_json(HangFacts, answer.out, where="inspector")
    except RecordError as error:
        return HangFacts(could_not=(str(error)[:300],))
    return HangFacts(could_not=((answer.err.strip().split("\n")[-1] or "exit code %s" % answer.code)[:300],))


def completed(seen: Mapping[str, HangFacts], probed: Sequence[ProcessEvidence]) -> Iterator[ProcessFacts]:
    """Each process once, with what the probe knows."""
    known = {(item.pid, item.start): item.env for item in probed}
    inside = {(item.namespace_pid, item.start) for place, one in seen.items() if place for item in one.processes}
    for place, item in ((place, item) for place, one in seen.items() for item in one.processes):
        id = (item.namespace_pid, item.start)
        # Processes of podman's containers are below the agent, so the host shows them too.
        if place or id not in inside:
            # A process that sets its title has no variables in /proc.
            yield replace(item, place=place, env={**item.env, **known.get(id, {})})


def _dead(probed: Sequence[ProcessEvidence], found: Sequence[ProcessFacts]) -> Iterator[ProcessFacts]:
    alive = {(process.namespace_pid, process.start) for process in found}
    for item in probed:
        if item.rank is not None and (item.pid, item.start) not in alive:
            last = item.exceptions[-1].chain[0] if item.exceptions and item.exceptions[-1].chain else None
            end = "it ended by itself" if item.end else "it was killed, or ended without Python's exit handlers"
            end = "%s: %s" % (last.type, last.message.split("\n")[0][:300]) if last else end
            yield ProcessFacts(item.pid, item.ppid, env=item.env, end=end)


def _write(paths: run_directory.RunDir, facts: HangFacts) -> None:
    directory = os.path.dirname(paths.hang)
    if os.path.islink(directory):
        os.unlink(directory)
    os.makedirs(directory, exist_ok=True)
    parts = ["=== NCCL %s\n%s\n" % item for item in facts.ras.items()]
    for process in facts.processes:
        who = "%s %s" % (process.env.get("RANK", ""), process.place)
        words = (who, process.pid, process.state, " ".join(process.argv), process.stacks)
        parts.append("=== rank, container: %s, pid %d, state %s: %s\n%s\n" % words)
    parts += ["could not: %s\n" % line for line in facts.could_not]
    replace_file(paths.hang_stacks, "\n".join(parts).encode("utf-8", "backslashreplace"))
    # The last: it is complete.
    replace_file(paths.hang, to_json(facts, compact=True).encode("utf-8", "backslashreplace"))


# -- torch's flight recorder -------------------------------------------------------------------------------------------


class UnsafePickle(ValueError):
    """It asks for more than plain data."""


def newest_collective(content: bytes, rank: int) -> Optional[RecordedCollective]:
    """The last collective or message that a rank has started, by its dump; None if it has none. Raises UnsafePickle."""
    import pickle

    class PlainData(pickle._Unpickler):  # the reader in C reserves memory for any index that a pickle names
        def find_class(self, module: str, name: str) -> Any:
            raise UnsafePickle("it names %.100s" % module)

    try:
        if len(content) > MAX_DUMP:
            raise UnsafePickle("it has more than %d MiB" % (MAX_DUMP >> 20))
        entries = PlainData(io.BytesIO(content)).load()["entries"]
        newest = max(filter(_number, entries), key=lambda entry: entry["record_id"], default=None)
        if newest is None:
            return None
        operation = format(newest["profiling_name"], ".100").rpartition(":")[2]  # nccl:all_reduce
        group = " ".join(newest["process_group"])[:200]  # number and description
        return RecordedCollective(rank, operation, _number(newest), format(newest["state"], ".50"), group)
    except Exception as error:  # whatever a crafted one makes of the reader
        raise UnsafePickle("no flight recorder: %.200r" % error) from None


def _number(entry: Mapping[str, Any]) -> int:
    return int(entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"])


def recorded_collectives(
    processes: Iterable[Mapping[str, str]], seconds: float
) -> Tuple[Tuple[RecordedCollective, ...], List[str]]:
    """(the last collective of each rank, why not) of the processes whose variables name a pipe: a line in it makes
    torch write a dump within `seconds`. Children of a rank have its variables too."""
    asked: Dict[int, str] = {}
    could_not: Dict[int, str] = {}
    began, until = time.time() - 1, time.monotonic() + seconds
    for env in processes:
        rank, pipe = env.get("RANK", ""), env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
        target = env.get("TORCH_FR_DUMP_TEMP_FILE") or env.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
        if pipe and target and rank.isdigit() and int(rank) not in asked:
            path = "%s%s.pipe" % (pipe, rank)
            try:  # a pipe that no process reads is not opened: that would wait
                with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "wb", buffering=0) as out:
                    out.write(b"1\n")
                asked[int(rank)], could_not[int(rank)] = target + rank, "torch has not written %s%s" % (target, rank)
            except OSError as error:
                could_not[int(rank)] = "no process reads %s (%s)" % (path, error.strerror)
    found: List[RecordedCollective] = []
    while asked and time.monotonic() < until:
        time.sleep(0.1)
        for number, path in sorted(asked.items()):
            try:
                if os.lstat(path).st_mtime < began:
                    continue
                newest = newest_collective(content_of(path, MAX_DUMP + 1, follow_link=False), number)
            except FileNotFoundError:
                continue
            except (OSError, UnsafePickle) as error:  # it may not be whole yet
                could_not[number] = "its flight recorder %s is not read: %s" % (path, error)
                continue
            del asked[number], could_not[number]
            found += [newest] if newest is not None else []
    return tuple(found), ["rank %s: %s" % item for item in could_not.items()]
