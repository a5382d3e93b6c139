"""Samples the GPUs of a run once a second while its job runs, and writes gpu.jsonl.

Two nvidia-smi processes, which live as long as the job, are read by one thread. One that hangs is left alone: another
one would hang too. One that ends is started again after a while. They end with the agent in every case: it kills them,
and where the agent is killed, the kernel does. Whatever fails here, the run does not notice.
"""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from typing import Callable, Collection, Dict, Optional, Sequence, Set, Tuple

from .. import process_tree
from ..agent_log import log_traceback
from ..host_queries import ask
from ..records import GpuProcessSample, GpuSample, Plan
from ..run_directory import RunDir
from . import nvidia_smi, sample_query, xids
from .process_owner import ProcessOwners
from .sample_file import SampleFile

FINISH_SECONDS = 8.0  # the end of a run waits so long for the thread
HELP_SECONDS = 20.0  # a cold driver needs several
KERNEL_LOG_SECONDS = 5.0
RESTART_SECONDS = (5.0, 30.0, 300.0)  # before nvidia-smi is started again; the last one counts from then on
SILENT_SECONDS = 20.0  # without a line after which that is noted
_POLL_SECONDS = 2.0
_END_SECONDS = 1.0
_PROCESS_SECONDS = 2.5 * sample_query.PROCESS_MILLISECONDS / 1000  # for which a process counts that was listed
_LEAST_SECONDS = 0.5  # between two samples: after a pause nvidia-smi may print several at once
_CHUNK = 1 << 16
_MAX_LINE = 4096
_MAX_NAME = 60  # characters of a process's name


class GpuSampler:
    """`own_gpus` are the UUIDs of the run's GPUs, none as long as they are not known; `containers` the ids of its
    containers."""

    def __init__(
        self,
        paths: RunDir,
        plan: Plan,
        own_gpus: Callable[[], Sequence[str]],
        containers: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        self._paths, self._plan, self._own_gpus, self._containers = paths, plan, own_gpus, containers
        self._file = SampleFile(paths.gpu_samples)
        self._stopped = threading.Event()
        self._wake, self._wake_up = -1, -1
        self._buses: Dict[str, Tuple[int, str]] = {}
        self._processes: Dict[Tuple[str, int], Tuple[float, GpuProcessSample]] = {}
        self._sampled_at: Dict[str, float] = {}
        self._last_line = 0.0
        self._is_silent = False
        self._thread = threading.Thread(target=self._run, name="GPU samples", daemon=True)

    def start(self) -> None:
        """Does nothing for a run without GPUs, or where there is no nvidia-smi."""
        if self._plan.gpus and not self._plan.is_simulated and shutil.which("nvidia-smi"):
            self._wake, self._wake_up = os.pipe()
            self._thread.start()

    def close(self) -> None:
        """The job is over. A thread that hangs is left behind, and writes nothing any more."""
        if not self._thread.ident or self._stopped.is_set():
            return
        self._stopped.set()
        os.write(self._wake_up, b"x")
        self._thread.join(FINISH_SECONDS)
        self._file.close(self._own_gpus())
        if not self._thread.is_alive():
            os.close(self._wake)
            os.close(self._wake_up)

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        began = time.time()
        try:
            self._sample()
            self._finish(began)
        except Exception as error:  # a missing sample must not disturb the job
            log_traceback(self._paths.path, "gpu.jsonl", error)
            self._file.add(GpuSample(t=_now(), problem=repr(error)))

    def _sample(self) -> None:
        answer = ask({"": sample_query.HELP}, HELP_SECONDS)[""]
        self._query = sample_query.known_fields(answer.out)
        self._owners = ProcessOwners(self._paths.path, self._plan, self._containers)
        self._last_line = time.monotonic()
        streams = [_Stream(self._query.command, self._read_gpu), _Stream(sample_query.PROCESS_COMMAND, self._read_app)]
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            try:
                while not self._stopped.is_set():
                    for stream in streams:
                        stream.start_when_due(selector)
                    for key, _ in selector.select(_POLL_SECONDS):
                        if isinstance(key.data, _Stream) and not key.data.read():
                            self._note(key.data.ended(selector))
                    self._check_silence()
            finally:
                for stream in streams:
                    stream.kill(selector)

    def _read_gpu(self, line: str) -> None:
        reading = sample_query.parse_reading(self._query, line, time.time())
        if reading is None or reading.sample.gpu is None:
            return
        self._last_line, self._is_silent = time.monotonic(), False
        sample, own = reading.sample, self._own_gpus()
        if sample.t - self._sampled_at.get(sample.uuid, 0.0) < _LEAST_SECONDS:
            return
        self._sampled_at[sample.uuid] = sample.t
        if reading.bus:
            self._buses[reading.bus] = sample.gpu or 0, sample.uuid
        if not own or sample.uuid in own:
            self._file.add(replace(sample, processes=self._processes_on(sample.uuid)))

    def _read_app(self, line: str) -> None:
        for app in nvidia_smi.parse_apps(line):
            owner = self._owners.owner(app.pid) if not app.name.startswith("[") else "unknown"
            name = os.path.basename(app.name)[:_MAX_NAME]
            process = GpuProcessSample(app.pid, app.used, owner, name)
            self._processes[_gpu_of(app.gpu_uuid), app.pid] = time.monotonic(), process

    def _processes_on(self, uuid: str) -> Tuple[GpuProcessSample, ...]:
        oldest = time.monotonic() - _PROCESS_SECONDS
        self._processes = {key: entry for key, entry in self._processes.items() if entry[0] >= oldest}
        return tuple(process for (gpu, _), (_, process) in self._processes.items() if gpu == uuid)

    def _check_silence(self) -> None:
        if not self._is_silent and time.monotonic() > self._last_line + SILENT_SECONDS:
            self._is_silent = True
            self._note("no line from nvidia-smi for %g s" % SILENT_SECONDS)

    def _note(self, problem: str) -> None:
        if problem:
            self._file.add(GpuSample(t=_now(), problem=problem))

    def _finish(self, began: float) -> None:
        """What the kernel's log says of these GPUs since `began`."""
        since = ["--since", "@%d" % began]
        queries = {**xids.QUERIES, xids.JOURNAL: [*xids.QUERIES[xids.JOURNAL], *since]}
        answers = ask(queries, KERNEL_LOG_SECONDS)
        ring, journal = answers[xids.DMESG], answers[xids.JOURNAL]
        seen: Set[Tuple[str, int, float]] = set()
        for xid in xids.parse_xids(ring.out) + xids.parse_xids(journal.out):
            # Both may have it, and their clocks differ by a little; both are in whole seconds.
            keys = [(xid.bus, xid.number, (xid.at or 0.0) + shift) for shift in (-1.0, 0.0, 1.0)]
            if xid.at is not None and xid.at >= began - 1 and not seen.intersection(keys):
                seen.add(keys[1])
                gpu, uuid = self._buses.get(xid.bus, (None, ""))
                if gpu is not None:
                    self._file.add(GpuSample(t=xid.at, gpu=gpu, uuid=uuid, xid=xid.number))
        self._file.add(GpuSample(t=_now(), ended=True, kernel_log=xids.is_readable(ring, journal)))


class _Stream:
    """A program that prints lines as long as it lives, and is started again after its end."""

    def __init__(self, argv: Sequence[str], on_line: Callable[[str], None]) -> None:
        self._argv, self._on_line = argv, on_line
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        self._start_at = 0.0
        self._ends = 0
        self._rest = b""
        self._last = ""

    def start_when_due(self, selector: selectors.BaseSelector) -> None:
        if self._process is not None or time.monotonic() < self._start_at:
            return
        try:
            process = subprocess.Popen(
                process_tree.dying_with_parent(self._argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError:
            self._wait()
            return
        assert process.stdout is not None
        self._process, self._rest, self._last = process, b"", ""
        selector.register(process.stdout, selectors.EVENT_READ, self)

    def read(self) -> bool:
        """What it printed. Returns False at its end."""
        assert self._process is not None and self._process.stdout is not None
        chunk = os.read(self._process.stdout.fileno(), _CHUNK)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._rest = self._rest[:_MAX_LINE]
        for line in lines:
            self._last = line.decode("utf-8", "replace").strip() or self._last
            self._on_line(self._last)
        return bool(chunk)

    def ended(self, selector: selectors.BaseSelector) -> str:
        """It printed its last line. Returns how it ended."""
        assert self._process is not None
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        code = self.kill(selector)
        return "nvidia-smi ended with exit code %s: %s" % (code, self._last[:200])

    def kill(self, selector: selectors.BaseSelector) -> Optional[int]:
        """End it where it still runs. Returns its exit code."""
        process, self._process = self._process, None
        if process is None or process.stdout is None:
            return None
        selector.unregister(process.stdout)
        process.stdout.close()
        if process.returncode is None:
            process_tree.kill_tree(process.pid)
        self._wait()
        try:
            return process.wait(_END_SECONDS)  # one that hangs in the driver stays, and nobody waits for it
        except subprocess.TimeoutExpired:
            return None

    def _wait(self) -> None:
        self._start_at = time.monotonic() + RESTART_SECONDS[min(self._ends, len(RESTART_SECONDS) - 1)]
        self._ends += 1


def _gpu_of(uuid: str) -> str:
    """nvidia-smi lists the processes of a MIG device under the GPU's own UUID, or under `MIG-` and that."""
    return uuid[len("MIG-") :].partition("/")[0] if uuid.startswith("MIG-GPU-") else uuid


def _now() -> float:
    return round(time.time(), 2)
