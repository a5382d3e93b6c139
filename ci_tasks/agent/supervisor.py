"""Supervises one job from its start to its end: log, events, status, heartbeat, timeout, stall, cancel.

The agent has a session of its own, so a dropped connection or a closed laptop does not end the job. It records how the
job ended; what that means (passed, failed, blocked) is decided on the client.
"""

from __future__ import annotations

import fcntl
import os
import select
import selectors
import subprocess
import time
from dataclasses import replace
from typing import Callable, List, Optional, Tuple

from . import agent_log, liveness, process_tree, processes, run_directory
from .cleanup.end_of_run import CleanupResult, RunCleanup, call_with_heartbeat
from .cleanup.left_containers import remove_left_containers
from .client_watch import ClientDeadline
from .codec import RecordError
from .containers.run_containers import DaemonMonitor
from .exit_gate import masked_record
from .gpus.run_resources import ResourcesUnavailable, RunResources
from .gpus.sampler import GpuSampler
from .hang.watcher import MAX_SECONDS as LOOK_SECONDS
from .hang.watcher import HangWatcher, timeout_allows
from .job_environment import given_secrets, job_environment, secret_values, shell_variables, unmasked_secrets
from .log_file import RunLog
from .own_files import OwnFiles
from .records import End, Event, Plan, Status
from .signals import SignalPipe

HEARTBEAT_SECONDS = 2.0  # between two writes of status.json
POLL_SECONDS = 0.05  # between two checks of processes that were asked to stop
DRAIN_SECONDS = 1.0  # processes that outlive the script may write into the log so long
RETRY_MINUTES = 10.0  # an agent whose daemon did not answer stays so long, to remove its containers
RETRY_SECONDS = 10.0
REAP_SECONDS = 10.0  # for a killed process to be gone; one that a driver or a file system holds never is
F_SETPIPE_SZ = 1031  # fcntl has it from Python 3.10
PIPE_BYTES = 1 << 18  # that the job may be ahead: the agent wakes up once for as many, where much is written

EndAndCode = Tuple[End, Optional[int]]  # how the job ended, and its exit code


def supervise(run_dir: str, started: Callable[[], None]) -> None:
    """Run the plan in `run_dir` to its end. Calls `started` as soon as status.json is there. Raises where the run
    cannot start, never for what the job does: a later bug of ours ends the run as `error`."""
    paths = run_directory.RunDir(run_dir)
    plan = run_directory.read_record(Plan, paths.plan)
    if plan is None:
        raise RecordError(paths.plan, "", "missing")
    with SignalPipe() as signals:
        supervisor = Supervisor(paths, plan, RunLog(paths.log, secret_values(plan)), signals)
        supervisor.run(started)
        supervisor.remove_left_containers()


class Supervisor:
    def __init__(self, paths: run_directory.RunDir, plan: Plan, log: RunLog, signals: SignalPipe) -> None:
        self.paths, self.plan, self.log, self.signals = paths, plan, log, signals
        self.timeout = plan.timeout_minutes * 60
        self.stall = plan.stall_minutes * 60
        self._secrets = secret_values(plan)
        self.started_at = time.time()
        me = processes.identity()
        self.status = Status(
            run_directory.STATE_RUNNING,
            started_at=self.started_at,
            pid=me.pid,
            pid_start=me.pid_start,
            boot_id=me.boot_id,
            secrets=given_secrets(plan),
            shell=shell_variables(),
        )
        self.began = self.last_output = self.last_heartbeat = self.last_poll = time.monotonic()
        self.stalled = False
        self.longest_silence = 0.0  # seconds
        self.resources = RunResources(plan, paths.path)
        self.cleanup = RunCleanup(paths, plan, lambda: signals.stop_requested)
        self.gpus = GpuSampler(
            paths, plan, lambda: self.status.gpu_uuids, lambda: self.cleanup.environment.container_ids
        )
        self.files, self.lock = OwnFiles(paths), liveness.AgentLock(paths.path)
        self.client = ClientDeadline(paths.path, plan.client_seconds)
        self.hang = HangWatcher(paths, lambda text: agent_log.log_traceback(paths.path, "hang", RuntimeError(text)))
        self.left: List[int] = []  # processes that could not be killed
        self.daemon = DaemonMonitor(plan, lambda: remove_left_containers(paths.path))

    def run(self, started: Callable[[], None]) -> None:
        agent_log.watch_threads(self.paths.path)
        process_tree.become_subreaper()
        self.lock.take()
        self._write_status()  # a run without a status does not start
        started()
        self.daemon.start()
        self._event(Event(_now(), "started"))
        for name in unmasked_secrets(self.plan):
            self.log.write(b"ci-tasks: %s is too short or too common a word to be masked\n" % name.encode())
        end: End = run_directory.END_ERROR
        code: Optional[int] = None
        try:
            end, code = self._execute()
        except Exception as error:  # whatever it is, the run must end, with a status and without processes
            self.status = replace(self.status, error=str(error) if isinstance(error, OSError) else repr(error))
            agent_log.log_traceback(self.paths.path, "the job's supervisor", error)
            self._kill()
        self._finish(end, code)

    def _execute(self) -> EndAndCode:
        ended = self._wait_for_resources()
        if ended is not None:
            return ended
        with self._start() as job, selectors.DefaultSelector() as selector:
            assert job.stdout is not None
            selector.register(job.stdout, selectors.EVENT_READ)
            selector.register(self.signals.fd, selectors.EVENT_READ)
            end = self._watch(selector, job)
            why_blocked = self._why_blocked() if end == run_directory.END_TIMEOUT else None
            if end == run_directory.END_EXIT:
                self._drain(selector, job)
            else:
                self._terminate(selector, job)
            self._kill()
            self._drain(selector, job)
            code = _reap(job)
            return self._blocked(why_blocked) if why_blocked else (end, code)

    def _wait_for_resources(self) -> Optional[EndAndCode]:
        """Wait until the job may start. Returns None, or how the run ends where it may not."""
        deadline = self.began + self.timeout
        try:
            self._poll_resources()
            while not self.resources.are_ready:
                if self.signals.stop_requested:
                    self._event(Event(_now(), run_directory.END_CANCELLED))
                    return run_directory.END_CANCELLED, None
                now = time.monotonic()
                if now >= deadline:
                    raise ResourcesUnavailable(self._timeout_reason(self.resources.waiting))
                select.select([self.signals.fd], [], [], max(0.0, min(self.resources.next_poll_at, deadline) - now))
                self.signals.clear()
                self._poll_resources()
        except ResourcesUnavailable as reason:
            return self._blocked(str(reason))
        self.last_output = time.monotonic()
        return None

    def _why_blocked(self) -> Optional[str]:
        """Why the job could not end in time, where that is not its own doing."""
        if self.resources.waiting:
            return self._timeout_reason(self.resources.waiting)
        silent = self.daemon.silent_seconds
        if silent:
            values = (self.daemon.runtime, silent, self.timeout / 60)
            return "%s has not answered for %.0f s; timeout after %g min" % values
        return None

    def _timeout_reason(self, waiting: List[str]) -> str:
        return "waited for %g min: %s" % (self.timeout / 60, "; ".join(waiting) or "nothing is known of the GPUs")

    def _blocked(self, reason: str) -> EndAndCode:
        line = "%s%s%s\n" % ("\n" if self.log.bytes else "", run_directory.BLOCKED, " ".join(reason.split()))
        self.log.write(line.encode("utf-8", "backslashreplace"))
        return run_directory.END_EXIT, run_directory.EXIT_BLOCKED

    def _poll_resources(self) -> None:
        """Put the state of the resources on record; at once where it changes what the run does."""
        self.resources.poll()
        before, now = self.status, time.monotonic()
        queued = before.queue_seconds + (now - self.last_poll if before.waiting else 0.0)
        self.last_poll, waiting = now, tuple(self.resources.waiting)
        phase = self.resources.phase
        if (waiting, phase, queued) != (before.waiting, before.phase, before.queue_seconds):
            self.status = replace(before, waiting=waiting, phase=phase, queue_seconds=queued)
        if self.resources.gpu_ids is not None and before.gpu_ids is None:
            ids = tuple(self.resources.gpu_ids)
            self.status = replace(self.status, gpu_ids=ids, gpu_uuids=tuple(self.resources.gpu_uuids))
            self._event(Event(_now(), "gpus", ids=ids))
        if self.status.phase != before.phase and waiting:
            self._event(Event(_now(), "waiting", reasons=waiting))
        changed = (self.status.phase, self.status.gpu_ids) != (before.phase, before.gpu_ids)
        if changed or now >= self.last_heartbeat + HEARTBEAT_SECONDS:
            self._heartbeat()

    def _start(self) -> _Job:
        job = _Job(
            ["bash", self.paths.script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.paths.path,
            env={**job_environment(self.plan, self.paths.path), **self.resources.environ},
            start_new_session=True,
            pass_fds=self.resources.descriptors,
        )
        assert job.stdout is not None
        _widen(job.stdout.fileno())
        self.status = replace(self.status, group=job.pid)
        self._heartbeat()
        self.cleanup.environment.begin()
        self.gpus.start()
        return job

    def _watch(self, selector: selectors.BaseSelector, job: _Job) -> End:
        """Wait until the job has ended, or has to. A job that ended meanwhile was neither cancelled nor timed out."""
        deadline = self.began + self.timeout
        while not _has_ended(job):
            if self.signals.stop_requested or time.monotonic() >= deadline:
                if self.signals.stop_requested:
                    self._event(Event(_now(), run_directory.END_CANCELLED))
                    return run_directory.END_CANCELLED
                self._event(Event(_now(), run_directory.END_TIMEOUT))
                self._finish_look(selector, job)
                return run_directory.END_TIMEOUT
            if timeout_allows(self.timeout):
                self.hang.look_before(deadline)
            self._pump(selector, job, deadline)
        return run_directory.END_EXIT

    def _finish_look(self, selector: selectors.BaseSelector, job: _Job) -> None:
        """A look at the processes ends before they are."""
        until = time.monotonic() + LOOK_SECONDS
        while self.hang.is_looking and time.monotonic() < until and not self.signals.stop_requested:
            self._pump(selector, job, time.monotonic() + POLL_SECONDS)
            self.hang.poll()

    def _terminate(self, selector: selectors.BaseSelector, job: _Job) -> None:
        """SIGTERM, then the grace period. What the job prints meanwhile is logged: a full pipe would block it."""
        self.resources.stop_waiting()
        processes.terminate(self.paths.path, job.pid)
        deadline = time.monotonic() + self.plan.grace_seconds
        while time.monotonic() < deadline and processes.of_run(self.paths.path, job.pid):
            self._pump(selector, job, time.monotonic() + POLL_SECONDS)

    def _drain(self, selector: selectors.BaseSelector, job: _Job) -> None:
        """Log what is still in the pipe; processes that outlive the script get a moment."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while job.stdout in [key.fileobj for key in selector.get_map().values()] and time.monotonic() < deadline:
            self._pump(selector, job, deadline)

    def _kill(self) -> None:
        # The clients of docker first: one of them could start a container after the others were stopped.
        killed = processes.kill_all(self.paths.path, self.status.group)
        if self.daemon.silent_seconds:
            self.cleanup.expect_no_answer()
        call_with_heartbeat(self.cleanup.stop, self._heartbeat, HEARTBEAT_SECONDS)
        # Only now those without mark and group: the parent of a podman container, which ends with it, is one of them.
        result = process_tree.kill_job(self.status.group)
        killed, self.left = killed + len(result.killed), result.left
        if killed:
            self._event(Event(_now(), "killed", killed=killed))

    def _pump(self, selector: selectors.BaseSelector, job: _Job, until: float) -> None:
        """Wait for output or a signal until something else is due; move the output into the log."""
        stall = self.last_output + self.stall if not self.stalled else until
        due = min(until, self.last_heartbeat + HEARTBEAT_SECONDS, stall, self.resources.next_poll_at)
        for key, _ in selector.select(max(0.0, due - time.monotonic())):
            if key.fileobj is not job.stdout:
                self.signals.clear()
                process_tree.reap_orphans(self.status.group)
                continue
            chunk = os.read(key.fd, PIPE_BYTES)
            if chunk:
                self.log.write(chunk)
                self.resources.read_output(chunk)
                self._note_output()
            else:
                selector.unregister(key.fileobj)
        self._poll_resources()
        self._check_stall()

    def _note_output(self) -> None:
        if self.hang.is_looking:
            return  # torch says that it writes its flight recorder, for which it was asked
        self.last_output = time.monotonic()
        if self.stalled:
            self.stalled = False
            self._event(Event(_now(), "resumed"))

    def _check_stall(self) -> None:
        if self.resources.waiting:
            self.last_output = time.monotonic()  # a job that waits for GPUs is silent with good reason
        silent = time.monotonic() - self.last_output
        self.longest_silence = max(self.longest_silence, silent)
        self.hang.look_at_silence(self.last_output, silent, self.plan.hang_minutes * 60)
        if not self.stalled and time.monotonic() >= self.last_output + self.stall:
            self.stalled = True
            self._event(Event(_now(), "stalled", minutes=self.stall / 60))

    def _finish(self, end: End, code: Optional[int]) -> None:
        # Not the clock's time, which may have been set meanwhile: a run takes as long as it takes.
        ended_at = self.started_at + time.monotonic() - self.began
        self.hang.close()
        self.resources.close()
        call_with_heartbeat(self.gpus.close, self._heartbeat, HEARTBEAT_SECONDS)
        self.log.close()
        if not call_with_heartbeat(self.log.is_intact, self._heartbeat, HEARTBEAT_SECONDS):
            self.files.note(self.paths.log)
        self._event(Event(_now(), "ended", end=end, exit_code=code))
        self.status = replace(self.status, phase="collecting")
        succeeded = end == run_directory.END_EXIT and code == 0
        self.signals.stop_requested = False  # it was the job's; another one is ours
        cleaned = (
            call_with_heartbeat(lambda: self.cleanup.finish(succeeded), self._heartbeat, HEARTBEAT_SECONDS)
            or CleanupResult()
        )
        self.daemon.close()
        process_tree.kill_everything()
        self.files.check()
        self.status = replace(
            self.status,
            state=run_directory.STATE_ENDED,
            phase="ended",
            end=end,
            exit_code=code,
            ended_at=ended_at,
            log_sha256=self.log.sha256,
            waiting=(),
            kept=cleaned.kept,
            masked=cleaned.masked,
            left=(*cleaned.left, *self._processes_left()),
        )
        # The end must be on record even where the disk was full a moment ago.
        for _ in range(60):
            if self._heartbeat():
                break
            time.sleep(1)
        self.lock.release()  # from here on the end is believed

    def remove_left_containers(self) -> None:
        """The run has ended, and its daemon did not answer: remove its containers when it does, within some time."""
        deadline = time.monotonic() + RETRY_MINUTES * 60
        while self.cleanup.left_containers and time.monotonic() < deadline:
            if self.signals.wait_for_stop(RETRY_SECONDS):
                return
            left = (*self.cleanup.retry(), *self._processes_left())
            if left != self.status.left:
                self.status = replace(self.status, left=left)
                self._heartbeat()

    def _processes_left(self) -> List[str]:
        return ["process %d was killed and has not ended" % pid for pid in self.left]

    def _note_daemon(self) -> None:
        """Put on record that the container daemon stopped to answer, or does again."""
        before, silent = self.status.daemon_silent_seconds, round(self.daemon.silent_seconds, 1)
        self.status = replace(self.status, daemon_silent_seconds=silent)
        if silent and not before:
            self._event(Event(_now(), "daemon silent", minutes=silent / 60))
        elif before and not silent:
            self._event(Event(_now(), "daemon answers", minutes=before / 60))

    def _heartbeat(self) -> bool:
        self.last_heartbeat = time.monotonic()
        if self.status.group is not None and self.status.phase == "running":
            self.hang.poll()
        self._note_daemon()
        if self.client.poll():
            self.log.write(b"ci-tasks: cancelled, since no client waits for it any more\n")
            self.signals.stop_requested = True
        try:
            self._write_status()
        except OSError:
            return False
        return True

    def _write_status(self) -> None:
        self.files.check_status()
        self.status = replace(
            self.status,
            sequence=self.status.sequence + 1,
            heartbeat_at=time.time(),
            log_bytes=self.log.bytes,
            log_error=self.log.error,
            stalled=self.stalled,
            longest_silence=round(self.longest_silence, 1),
            changed=self.files.changed,
        )
        self.files.write_status(masked_record(self.status, self._secrets))

    def _event(self, event: Event) -> None:
        try:
            self.files.add_event(masked_record(event, self._secrets))
        except OSError as error:
            self.log.error = self.log.error or "events could not be written: %s" % error.strerror


def _now() -> float:
    return round(time.time(), 3)


class _Job(subprocess.Popen):  # type: ignore[type-arg]  # Python 3.8 has no Popen[bytes] outside of annotations
    """A process whose `with` block does not wait for its end: the run is over even where the kernel keeps it."""

    def __exit__(self, *_: object) -> None:
        if self.stdout is not None:
            self.stdout.close()


def _widen(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # another system, or this user has no room for more
        pass


def _has_ended(job: _Job) -> bool:
    """Without reaping it: as long as it is a zombie, its process group's number can be nobody else's."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return job.poll() is not None


def _reap(job: _Job) -> Optional[int]:
    """The exit code as a shell gives it; None for a process that cannot be killed."""
    try:
        code = job.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return code if code >= 0 else 128 - code
