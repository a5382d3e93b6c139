"""Looks at all processes of a run that may hang, and writes hang/facts.json and hang/stacks.txt into its directory.

A process of its own, which the run's agent starts and ends after a while: whatever hangs here, the run does not notice.
A part that failed is a line that says why.

torch's flight recorder is asked for a dump, which is a pickle of the job's: no name in it is looked up.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import pkgutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, cast

from .. import processes, run_directory
from ..codec import RecordError, from_json, masked_record, to_json
from ..containers.run_containers import RunContainers
from ..files import content_of, replace_file
from ..probe.evidence import ProcessEvidence, read_evidence
from .look import HangFacts, ProcessFacts, Reason, RecordedCollective

SECONDS = 45.0  # for the processes
DUMP_SECONDS = 8.0  # for torch to write its flight recorder
MAX_OUTPUT = 12 << 20  # bytes of one inspector
MAX_DUMP = 4 << 20  # bytes of a flight recorder
_MOST_AT_ONCE = 32  # places that are looked at: the host, and each container


def collect(run_dir: str, reason: str, request: str) -> HangFacts:
    """Look, and write what is seen. Raises OSError if it cannot be written."""
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
        taken_at=round(time.time(), 3),
        reason=cast("Reason", reason),
        request=request,
        seconds=round(time.monotonic() - began, 3),
        processes=found,
        gone=tuple(_dead(probed, found)),
        lines={place: text for one in seen.values() for place, text in one.lines.items()},
        ras={place: one.ras[""] for place, one in seen.items() if one.ras},
        collectives=collectives,
        could_not=(*could_not, *own.problems, *problems),
    )
    _write(paths, masked_record(facts, run_directory.secret_values(run_directory.read_plan(paths))))
    return facts


def look(python: List[str], pids: Optional[List[int]], env: Optional[Mapping[str, str]] = None) -> HangFacts:
    """What the inspector sees where `python` runs."""
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


class _PlainData(pickle._Unpickler):  # the reader in C reserves memory for any index that a pickle names
    def find_class(self, module: str, name: str) -> Any:
        raise UnsafePickle("it names %.100s" % module)


def newest_collective(content: bytes, rank: int) -> Optional[RecordedCollective]:
    """The last collective or message that a rank has started, by its dump; None if it has none. Raises UnsafePickle."""
    try:
        if len(content) > MAX_DUMP:
            raise UnsafePickle("it has more than %d MiB" % (MAX_DUMP >> 20))
        entries = _PlainData(io.BytesIO(content)).load()["entries"]
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
