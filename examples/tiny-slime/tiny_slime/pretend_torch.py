"""A pretend torch: GPU memory that can run out, collectives that can wait for ever, and the launcher of ranks.

Only what is printed is torch's: the exceptions' names and messages, the lines that NCCL's watchdog writes from C++, and
the table with which `torchrun` ends. The waiting is real.
"""

import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import wait

from tiny_slime.pretend_ray import FORK

CAPACITY = 79.11
chance = random.SystemRandom()


class OutOfMemoryError(RuntimeError):
    __module__ = "torch"


class ChildFailedError(Exception):
    __module__ = "torch.distributed.elastic.multiprocessing.errors"


class Device:
    """One GPU's memory, in GiB. Other things on it take a little, never the same."""

    def __init__(self, ordinal, weights):
        self.ordinal, self.others, self.allocated = ordinal, chance.uniform(0.4, 0.9), weights

    def allocate(self, size):
        reserved = 0.04 * self.allocated
        used = self.allocated + reserved + self.others
        if used + size > CAPACITY:
            raise OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size:.2f} GiB. GPU {self.ordinal} has a total capacity of "
                f"{CAPACITY} GiB of which {CAPACITY - used:.2f} GiB is free. Process {os.getpid()} has {used:.2f} GiB "
                f"memory in use. Of the allocated memory {self.allocated:.2f} GiB is allocated by PyTorch, and "
                f"{reserved:.2f} GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
                "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
            )
        self.allocated += size


class ProcessGroup:
    """A rank's view of the others. A collective returns when every rank has entered it."""

    def __init__(self, rank, barrier, timeout):
        self.rank, self.barrier, self.timeout = rank, barrier, timeout
        self.sequence, self.since = 0, None
        threading.Thread(target=self._watch, daemon=True).start()

    def all_reduce(self):
        self.sequence += 1
        self.since = time.monotonic()
        self.barrier.wait()
        self.since = None

    def _watch(self):
        """NCCL's watchdog: a thread of each rank that looks from time to time, and ends the process."""
        while True:
            time.sleep(chance.uniform(0.01, 0.05))
            since = self.since
            if since is not None and time.monotonic() - since > self.timeout:
                self._give_up(time.monotonic() - since)

    def _give_up(self, waited):
        caught = (
            f"[Rank {self.rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={self.sequence}, "
            f"OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)={self.timeout * 1000:.0f}) ran for "
            f"{waited * 1000:.0f} milliseconds before timing out."
        )
        group = f"[PG ID 0 PG GUID 0(default_pg) Rank {self.rank}]"
        self._say(632, caught)
        self._say(
            728,
            f"[Rank {self.rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA "
            "kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        )
        self._say(734, f"[Rank {self.rank}] To avoid data inconsistency, we are taking the entire process down.")
        self._say(1895, f"{group} Process group watchdog thread terminated with exception: {caught}")
        _write("terminate called after throwing an instance of 'c10::DistBackendError'")
        _write(f"  what():  {group} Process group watchdog thread terminated with exception: {caught}")
        os.abort()

    def _say(self, line_no, text):
        now = time.time()
        moment = f"{time.strftime('%m%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1e9):09d}"
        _write(f"[rank{self.rank}]:[E{moment} ProcessGroupNCCL.cpp:{line_no}] {text}")


def _write(line):
    # One call per line: lines of several ranks mix, letters do not.
    os.write(2, f"{line}\n".encode())


def launch(world, work, *arguments):
    """Run `work(rank, barrier, …)` in a process per rank, as torchrun does: when one fails, the others are ended."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    barrier = FORK.Barrier(world)
    sys.stdout.flush()
    ranks = [FORK.Process(target=work, args=(rank, barrier, *arguments)) for rank in range(world)]
    for process in ranks:
        process.start()
    waiting = list(ranks)
    while waiting and not any(process.exitcode for process in ranks):
        wait([process.sentinel for process in waiting])
        waiting = [process for process in waiting if process.exitcode is None]
    time.sleep(0.1)  # torchrun looks at its ranks ten times a second, so that several may have failed when it does
    failed = [(rank, process) for rank, process in enumerate(ranks) if process.exitcode]
    for process in ranks:
        if process.exitcode is None:
            _warn(f"Sending process {process.pid} closing signal SIGTERM")
            process.terminate()
        process.join()
    if failed:
        raise ChildFailedError(_table(failed))


def _warn(text):
    moment = time.strftime("%m%d %H:%M:%S")
    _write(f"W{moment}.{chance.randrange(10**6):06d} {os.getpid()} elastic/multiprocessing/api.py:900] {text}")


def _table(failed):
    """What torchrun knows: which rank failed first and how, but not why. The why stands above, in the rank's lines."""
    (root, first), *others = failed
    lines = ["", "=" * 60, f"{os.path.basename(sys.argv[0])} FAILED", "-" * 60, "Failures:"]
    for number, (rank, process) in enumerate(others, 1):
        lines += _entry(number, rank, process)
    lines += ["" if others else "  <NO_OTHER_FAILURES>", "-" * 60, "Root Cause (first observed failure):"]
    return "\n".join([*lines, *_entry(0, root, first), "=" * 60])


def _entry(number, rank, process):
    name = signal.Signals(-process.exitcode).name if process.exitcode < 0 else None
    how = f"Signal {-process.exitcode} ({name}) received by PID {process.pid}" if name else "To enable traceback see"
    return [
        f"[{number}]:",
        f"  time      : {time.strftime('%Y-%m-%d_%H:%M:%S')}",
        f"  host      : {socket.gethostname()}",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {process.exitcode} (pid: {process.pid})",
        "  error_file: <N/A>",
        f"  traceback : {how}",
    ]
