"""Watches one job from its start to its end: log, events, status, heartbeat, timeout, stall, cancel.

The runner leaves its caller's session, so that a dropped link or a closed laptop means nothing to the job. It says how
the job ended and leaves it to the judge to say what that means.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional

from . import layout, process
from .docker.adapter import BLOCKED, EXIT_BLOCKED
from .environment import job_environment, secret_values
from .gpu import gate
from .leave import closing
from .logfile import Log
from .wake import Wake

VERSION = 1
HEARTBEAT = 2.0  # seconds between two writes of status.json
PATIENCE = 10.0  # seconds between the request to stop and the kill, as on GitHub; plan.json's patience_seconds wins
GLANCE = 0.05  # seconds between two looks at processes that were asked to stop
DRAIN = 1.0  # seconds that processes which outlive the script may still write into the log
REAP = 10.0  # seconds for a killed process to be gone; one that a driver or a file system holds never is
CHUNK = 1 << 16


def supervise(run_dir: str, started: Callable[[], None]) -> None:
    """Run the plan in `run_dir` to its end. Calls `started` as soon as the run is on record. Raises where it cannot
    begin, never for what the job does: a later fault of ours ends the run as `error`."""
    paths = layout.RunDir(run_dir)
    plan = layout.read_json(paths.plan)
    with Wake() as wake:
        _Supervisor(paths, plan, Log(paths.log, secret_values(plan)), wake).run(started)


def patience(plan: Dict[str, Any]) -> float:
    """Seconds between the request to stop and the kill."""
    return float(plan.get("patience_seconds", PATIENCE))


class _Supervisor:
    def __init__(self, paths: layout.RunDir, plan: Dict[str, Any], log: Log, wake: Wake) -> None:
        self.paths, self.plan, self.log, self.wake = paths, plan, log, wake
        self.timeout = float(plan["timeout_minutes"]) * 60
        self.stall = float(plan["stall_minutes"]) * 60
        self.patience = patience(plan)
        self.status: Dict[str, Any] = {
            "version": VERSION,
            "state": layout.STATE_RUNNING,
            "phase": gate.STARTING,
            "waiting": [],
            "started_at": time.time(),
            **process.identity(),
        }
        self.begun = self.heard = self.beaten = time.monotonic()
        self.stalled = False
        self.gate = gate.Gate(plan, paths.path)
        self.closing = closing.Closing(paths, plan)

    def run(self, started: Callable[[], None]) -> None:
        self._write_status()  # a run that cannot be put on record does not begin
        started()
        self._event("started")
        end, code = layout.END_ERROR, None
        try:
            end, code = self._execute()
        except Exception as error:  # whatever it is, the run must end, on record and with nothing left
            self.status["error"] = str(error) if isinstance(error, OSError) else repr(error)
            self._kill()
        self._finish(end, code)

    def _execute(self) -> "tuple[str, Optional[int]]":
        early = self._wait()
        if early is not None:
            return early
        with self._start() as job, selectors.DefaultSelector() as selector:
            assert job.stdout is not None
            selector.register(job.stdout, selectors.EVENT_READ)
            selector.register(self.wake.fd, selectors.EVENT_READ)
            end = self._watch(selector, job)
            starved = self.gate.waiting if end == layout.END_TIMEOUT else []
            if end == layout.END_EXIT:
                self._drain(selector, job)
            else:
                self._ask_to_stop(selector, job)
            self._kill()
            self._drain(selector, job)
            code = _reap(job)
            return self._blocked(self._too_long(starved)) if starved else (end, code)

    def _wait(self) -> "Optional[tuple[str, Optional[int]]]":
        """Until the job may begin: None, or how the run ends where it may not."""
        deadline = self.begun + self.timeout
        try:
            self._attend()
            while not self.gate.is_open:
                if self.wake.asked:
                    self._event(layout.END_CANCELLED)
                    return layout.END_CANCELLED, None
                now = time.monotonic()
                if now >= deadline:
                    raise gate.Blocked(self._too_long(self.gate.waiting))
                select.select([self.wake.fd], [], [], max(0.0, min(self.gate.due, deadline) - now))
                self.wake.clear()
                self._attend()
        except gate.Blocked as reason:
            return self._blocked(str(reason))
        self.heard = time.monotonic()
        return None

    def _too_long(self, waiting: List[str]) -> str:
        return "waited for %g min: %s" % (self.timeout / 60, "; ".join(waiting) or "nothing is known of the GPUs")

    def _blocked(self, reason: str) -> "tuple[str, Optional[int]]":
        line = "%s%s%s\n" % ("\n" if self.log.bytes else "", BLOCKED, " ".join(reason.split()))
        self.log.write(line.encode("utf-8", "backslashreplace"))
        return layout.END_EXIT, EXIT_BLOCKED

    def _attend(self) -> None:
        """What the gate has to say, on record; at once where it changes what the run does."""
        self.gate.tick()
        before = self.status.get("phase"), self.status.get("gpu_ids")
        self.status["waiting"] = self.gate.waiting
        if self.gate.gpu_ids is not None and before[1] is None:
            self.status["gpu_ids"] = self.gate.gpu_ids
            self._event("gpus", ids=self.gate.gpu_ids)
        if self.gate.phase != before[0]:
            self.status["phase"] = self.gate.phase
            if self.gate.waiting:
                self._event("waiting", **{"for": self.gate.waiting})
        if (self.status["phase"], self.status.get("gpu_ids")) != before or time.monotonic() >= self.beaten + HEARTBEAT:
            self._beat()

    def _start(self) -> _Job:
        job = _Job(
            ["bash", self.paths.script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.paths.path,
            env={**job_environment(self.plan, self.paths.path), **self.gate.environ},
            start_new_session=True,
            pass_fds=self.gate.descriptors,
        )
        self.status["group"] = job.pid
        self._beat()
        self.closing.census.begin()
        return job

    def _watch(self, selector: selectors.BaseSelector, job: _Job) -> str:
        """Until the job has ended, or has to. A job that ended meanwhile was neither cancelled nor too slow."""
        deadline = self.begun + self.timeout
        while not _has_ended(job):
            if self.wake.asked or time.monotonic() >= deadline:
                end = layout.END_CANCELLED if self.wake.asked else layout.END_TIMEOUT
                self._event(end)
                return end
            self._pump(selector, job, deadline)
        return layout.END_EXIT

    def _ask_to_stop(self, selector: selectors.BaseSelector, job: _Job) -> None:
        """What the job says while it stops still belongs to the log, and a full pipe would keep it from stopping."""
        self.gate.give_up()
        process.ask_to_stop(self.paths.path, job.pid)
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline and process.of_run(self.paths.path, job.pid):
            self._pump(selector, job, time.monotonic() + GLANCE)

    def _drain(self, selector: selectors.BaseSelector, job: _Job) -> None:
        """What is still in the pipe belongs to the log; what outlives the script gets a moment."""
        deadline = time.monotonic() + DRAIN
        while job.stdout in [key.fileobj for key in selector.get_map().values()] and time.monotonic() < deadline:
            self._pump(selector, job, deadline)

    def _kill(self) -> None:
        # The clients first: one of them could start a container after those that there are were stopped.
        left = process.kill_all(self.paths.path, self.status.get("group"))
        closing.patiently(self.closing.stop, self._beat, HEARTBEAT)
        if left:
            self._event("leftovers", killed=left)

    def _pump(self, selector: selectors.BaseSelector, job: _Job, until: float) -> None:
        """Move output that is there into the log; wait for some, or for a signal, until something else is due."""
        stall = self.heard + self.stall if not self.stalled else until
        due = min(until, self.beaten + HEARTBEAT, stall, self.gate.due)
        for key, _ in selector.select(max(0.0, due - time.monotonic())):
            if key.fileobj is not job.stdout:
                self.wake.clear()
                continue
            chunk = os.read(key.fd, CHUNK)
            if chunk:
                self.log.write(chunk)
                self.gate.hear(chunk)
                self._hear()
            else:
                selector.unregister(key.fileobj)
        self._attend()
        self._notice_stall()

    def _hear(self) -> None:
        self.heard = time.monotonic()
        if self.stalled:
            self.stalled = False
            self._event("resumed")

    def _notice_stall(self) -> None:
        if self.gate.waiting:
            self.heard = time.monotonic()  # a job that waits for GPUs is silent with good reason
        if not self.stalled and time.monotonic() >= self.heard + self.stall:
            self.stalled = True
            self._event("stalled", minutes=self.stall / 60)

    def _finish(self, end: str, code: Optional[int]) -> None:
        # Not the clock's time, which may have been set meanwhile: a run takes as long as it takes.
        ended_at = self.status["started_at"] + time.monotonic() - self.begun
        self.gate.close()
        self.log.close()
        self._event("ended", end=end, exit_code=code)
        self.status["phase"] = closing.COLLECTING
        succeeded = end == layout.END_EXIT and code == 0
        self.status.update(closing.patiently(lambda: self.closing.close(succeeded), self._beat, HEARTBEAT) or {})
        self.status.update(
            state=layout.STATE_ENDED,
            phase=layout.STATE_ENDED,
            end=end,
            exit_code=code,
            ended_at=ended_at,
            log_sha256=self.log.sha256,
            waiting=[],
        )
        # The end must be on record even where the disk was full a moment ago.
        for _ in range(60):
            if self._beat():
                return
            time.sleep(1)

    def _beat(self) -> bool:
        self.beaten = time.monotonic()
        try:
            self._write_status()
        except OSError:
            return False
        return True

    def _write_status(self) -> None:
        self.status.update(
            heartbeat_at=time.time(), log_bytes=self.log.bytes, log_error=self.log.error, stalled=self.stalled
        )
        layout.write_json(self.paths.status, self.status)

    def _event(self, name: str, **more: Any) -> None:
        line = json.dumps({"t": round(time.time(), 3), "event": name, **more}) + "\n"
        try:
            with open(self.paths.events, "a", encoding="utf-8") as out:
                out.write(line)
        except OSError as error:
            self.log.error = self.log.error or "events could not be written: %s" % error.strerror


class _Job(subprocess.Popen):  # type: ignore[type-arg]  # Python 3.8 has no Popen[bytes] outside of annotations
    """A process whose `with` block does not wait for its end: the run is over even where the kernel keeps it."""

    def __exit__(self, *_: object) -> None:
        if self.stdout is not None:
            self.stdout.close()


def _has_ended(job: _Job) -> bool:
    """Without reaping it: as long as it is a zombie, its process group's number can be nobody else's."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return job.poll() is not None


def _reap(job: _Job) -> Optional[int]:
    """The exit code as a shell gives it; None for a process that cannot be killed."""
    try:
        code = job.wait(REAP)
    except subprocess.TimeoutExpired:
        return None
    return code if code >= 0 else 128 - code
