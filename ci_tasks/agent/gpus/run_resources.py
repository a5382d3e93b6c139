"""What a run needs of its host: named locks of the host (such as for Ray on the host's network), and GPUs.

Either the agent takes the locks of the lowest free GPUs, all or none, for a suite without a lock script. Or the job's
own script does, and the agent *blocks* GPUs meanwhile: it holds the locks of those that do not exist here and of those
that processes use without a lock, until the job has its own. A GPU whose lock another process holds is left alone, the
job's own among them.

That a script has its locks, or waits for them, it says in the log; while it waits, `waiting` says for whom. If it says
nothing the GPUs stay blocked, which harms no run: no job should take them.

Why no GPU is given twice, and why there is no deadlock:
- Whatever uses a GPU holds an exclusive flock on its file; it ends with its holder, however that ends.
- Whoever waits for GPUs holds none: the script and the agent take all that they need, or none. A run that needs all
  GPUs of a host waits until all are free at one moment, as in CI.
- Locks are taken in one order: the host's named ones first, by name, then GPUs. A run that has GPUs waits for no named
  lock.
- GPUs are blocked with *shared* locks. The agents of several runs do not wait for each other, and when one of them ends
  there is no gap in which a script could take a GPU that does not exist: while any of them is left, the script's
  exclusive lock is refused.
"""

from __future__ import annotations

import math
import os
import random
import re
import time
from typing import Dict, Iterable, Iterator, List, Optional, Set

from ..records import AGENT, GpuRequest, Phase, Plan
from . import lock_files, nvidia_smi

DIRECTORY = "/dev/shm"
ENV_DIRECTORY = "CI_TASKS_LOCK_DIR"  # for tests, which must not block real runs
# The ids under a name that the job's script does not set: the container adapter passes them as CUDA_VISIBLE_DEVICES.
ENV_GPU_IDS = "CI_TASKS_GPU_IDS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# The messages of the checkout's lock script. Any other than "Acquired" means that it waits.
_MESSAGE = re.compile(rb"^\[gpu_lock_exec\] (?:Acquired GPUs: (\d+(?:,\d+)*)\s*$)?", re.M)
_MAX_LINE = 4096  # bytes of an unfinished line that are kept
POLL_SECONDS = 0.05  # between two looks at the locks
REFRESH_SECONDS = 2.0  # between two looks at the GPUs


class ResourcesUnavailable(Exception):
    """The run is not possible on this host; the message says why."""


class RunResources:
    """The supervisor calls `poll` at `next_poll_at`, which never blocks, `read_output` with what the job writes, and
    `close` at the end.

    `are_ready`: the job may start. `waiting`: what is missing and who holds it. `gpu_ids`: the job's GPUs, once known.
    `held` and `blocked` are {GPU id: descriptor} of exclusive and of shared locks.
    """

    def __init__(self, plan: Plan, poll_seconds: float = POLL_SECONDS) -> None:
        self.are_ready = False
        self.next_poll_at = -math.inf
        self.waiting: List[str] = []
        self.gpu_ids: Optional[List[int]] = None
        self.held: Dict[int, int] = {}
        self.blocked: Dict[int, int] = {}
        self._plan, self._poll_seconds = plan, poll_seconds
        self._request = plan.gpu_locks or GpuRequest(0)
        self._monitor = nvidia_smi.GpuMonitor(REFRESH_SECONDS)
        self._host_locks: List[int] = []
        self._waits = self._request.by == AGENT
        self._describe_at = -math.inf
        self._line = b""
        self._steps = self._acquire()

    @property
    def phase(self) -> Phase:
        return "waiting" if self.waiting else "running" if self.are_ready else "starting"

    @property
    def gpu_uuids(self) -> List[str]:
        """The UUIDs of `gpu_ids`; none of simulated GPUs, or without nvidia-smi."""
        gpus = self._monitor.latest.gpus if self._monitor.latest is not None else ()
        return [gpu.uuid for gpu in gpus if gpu.index in (self.gpu_ids or ()) and gpu.driver]

    @property
    def environ(self) -> Dict[str, str]:
        """Variables for the job, on top of its environment: the GPUs that the agent has taken."""
        gpus = ",".join(map(str, self.gpu_ids or ()))
        return {_VISIBLE: gpus, ENV_GPU_IDS: gpus} if self._request.by == AGENT and gpus else {}

    @property
    def descriptors(self) -> List[int]:
        """For the job to inherit: these locks last as long as it lives, even if its agent is killed."""
        return [*self._host_locks, *self.held.values()]

    def poll(self) -> None:
        """Raises ResourcesUnavailable if the job cannot start; once it has started, nothing here ends it."""
        if time.monotonic() < self.next_poll_at:
            return
        try:
            if self.are_ready:
                self._poll_gpus()
            else:
                self.are_ready = next(self._steps, True)
        except (lock_files.LockError, OSError) as error:
            if not self.are_ready:
                raise ResourcesUnavailable(str(error)) from None
        if self.are_ready and (self.gpu_ids is not None or not self._request.count):
            self._stop_polling()
        else:
            # Not in step with others.
            self.next_poll_at = time.monotonic() + self._poll_seconds * random.uniform(1.0, 1.5)

    def read_output(self, chunk: bytes) -> None:
        """What the job wrote: its lock script says there which GPUs it has."""
        if self.next_poll_at == math.inf:
            return
        lines, _, self._line = (self._line + chunk).rpartition(b"\n")
        self._line = self._line[:_MAX_LINE]
        for message in _MESSAGE.finditer(lines):
            gpus = [int(gpu) for gpu in message[1].split(b",")] if message[1] else []
            # A test may print such a line too; the job cannot have what we hold.
            if gpus and not {*self.blocked, *self.held}.intersection(gpus):
                self.gpu_ids = sorted(gpus)
                self.stop_waiting()
                return
            self._waits = True

    def stop_waiting(self) -> None:
        """The job has its GPUs, or is about to be stopped: keep none from others."""
        if self.next_poll_at < math.inf:
            _release(self.held)
            _release(self.blocked)
            self._stop_polling()

    def close(self) -> None:
        """Release everything, whichever process has inherited it."""
        self.stop_waiting()
        _release(self.held)
        while self._host_locks:
            lock_files.release(self._host_locks.pop())

    def _stop_polling(self) -> None:
        self.waiting, self.next_poll_at = [], math.inf
        self._monitor.close()

    def _acquire(self) -> Iterator[bool]:
        """Yields False as long as something is missing."""
        request, monitor = self._request, self._monitor
        for name in sorted(set(self._plan.exclusive)):
            yield from self._lock_host(name)
        if not request.count:
            return
        if request.simulated is not None:
            monitor.latest = nvidia_smi.simulated_gpus(request.simulated)
        elif monitor.latest is None:
            monitor.start()
        while monitor.latest is None:
            yield False
        if monitor.latest.problem == nvidia_smi.NO_PROGRAM and request.declared is not None:
            monitor.close()
            monitor.latest, monitor.problem = nvidia_smi.simulated_gpus(request.declared), ""
        if monitor.latest.problem:
            raise ResourcesUnavailable("nvidia-smi shows no GPUs: %s" % monitor.latest.problem)
        here = [gpu for gpu in monitor.latest.ids if gpu < request.total]
        if len(here) < request.count:
            words = (len(here), "s"[: len(here) != 1], request.count)
            raise ResourcesUnavailable("this host has %d GPU%s, the job needs %d" % words)
        if request.by == AGENT:
            lock_files.create_missing([request.paths[gpu] for gpu in here])
        self._poll_gpus()  # what must not be used is blocked before the job starts
        while request.by == AGENT and self.gpu_ids is None:
            yield False
            self._poll_gpus()

    def _lock_host(self, name: str) -> Iterator[bool]:
        """A file `ci-tasks-NAME.lock`, which any user may lock."""
        simulated = self._request.directory if self._request.simulated is not None else ""
        directory = simulated or os.environ.get(ENV_DIRECTORY) or DIRECTORY
        path = os.path.join(directory, "ci-tasks-%s.lock" % re.sub(r"[^A-Za-z0-9_.-]", "_", name))
        while (descriptor := lock_files.try_lock(path, own=True)) is None:
            holder = lock_files.holders({0: path}).get(0, 0)
            self.waiting = ["%s held by %s" % (name, lock_files.describe_process(holder))]
            yield False
        self._host_locks.append(descriptor)
        self.waiting = []

    # -- GPUs --------------------------------------------------------------------------------------------------------

    def _poll_gpus(self) -> None:
        request, snapshot, now = self._request, self._monitor.latest, time.monotonic()
        if snapshot is None or snapshot.problem:
            return
        in_use = nvidia_smi.gpus_in_use(snapshot.gpus, snapshot.apps)
        usable = {gpu for gpu in snapshot.ids if gpu < request.total and gpu not in in_use}
        if request.by != AGENT:
            self._block(set(request.paths) - usable)
        elif self._take(usable):
            self.gpu_ids, self.waiting = sorted(self.held), []
            return
        if self._waits and now >= self._describe_at:
            self._describe_at = now + REFRESH_SECONDS
            self.waiting = self._reasons(snapshot.ids, in_use)

    def _block(self, unusable: Set[int]) -> None:
        _release(self.blocked, except_for=unusable)
        for gpu in sorted(unusable - set(self.blocked)):
            self._lock(gpu, self.blocked, shared=True)

    def _take(self, usable: Iterable[int]) -> bool:
        """Lock as many of the `usable` GPUs as the run needs, the lowest first, or none. Returns whether it has any."""
        for gpu in sorted(usable):
            if len(self.held) < self._request.count:
                self._lock(gpu, self.held)
        if len(self.held) < self._request.count:
            _release(self.held)
        return bool(self.held)

    def _lock(self, gpu: int, locks: Dict[int, int], shared: bool = False) -> None:
        descriptor = lock_files.try_lock(self._request.paths[gpu], shared)
        if descriptor is not None:
            locks[gpu] = descriptor

    def _reasons(self, ids: Iterable[int], in_use: Dict[int, str]) -> List[str]:
        """What keeps the request from being met now, a sentence for all GPUs with the same reason."""
        missing = set(self._request.paths) - set(ids)
        holders = lock_files.holders(self._request.paths)
        reasons: Dict[str, List[int]] = {}
        for gpu in sorted(set(self._request.paths) - missing - set(self.held)):
            if gpu in holders:
                reasons.setdefault(" held by " + lock_files.describe_process(holders[gpu]), []).append(gpu)
            elif gpu in in_use:
                reasons.setdefault(": %s without a lock" % in_use[gpu], []).append(gpu)
            elif os.path.exists(self._request.paths[gpu]) and not lock_files.is_free(self._request.paths[gpu]):
                reasons.setdefault(" held by " + lock_files.UNKNOWN, []).append(gpu)
        if missing:
            reasons[" do%s not exist here" % ("es" if len(missing) == 1 else "")] = sorted(missing)
        sentences = [lock_files.numbered("GPU", gpus) + reason for reason, gpus in reasons.items()]
        return sentences + ([self._monitor.problem] if self._monitor.problem else [])


def _release(locks: Dict[int, int], except_for: Iterable[int] = ()) -> None:
    for gpu in set(locks) - set(except_for):
        lock_files.release(locks.pop(gpu))


def visible_gpus() -> Dict[str, str]:
    """The variables for the container of a job whose GPUs the agent chose, read in the job's own environment."""
    return {_VISIBLE: os.environ[ENV_GPU_IDS]} if ENV_GPU_IDS in os.environ else {}
