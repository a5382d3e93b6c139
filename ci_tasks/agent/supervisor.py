"""Supervises one job from its start to its end: log, events, status, heartbeat, timeout, stall, cancel.

The agent has a session of its own, so a dropped connection or a closed laptop does not end the job. It records how the
job ended; what that means (passed, failed, blocked) is decided on the client.

On a compute node, `python agent.pyz batch RUN_DIR` stays in the foreground, so that Slurm ends it with the job and gets
its exit code. A job that was requeued starts over, in a new checkout, with the same record: its log is continued.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import hang, processes, slurm
from . import run_directory as rd
from .codec import RecordError, masked_record
from .containers import RunContainers
from .files import content_of, replace_any
from .finish import RunCleanup
from .git import StoreError
from .gpu_locks import ResourcesUnavailable, RunResources
from .nvidia_smi import GpuSampler
from .processes import SignalPipe
from .records import End, Event, Plan, SlurmAllocation, SlurmJob, Status
from .run_directory import VISIBLE_GPUS
from .workspace import TreeStore

HEARTBEAT_SECONDS = 2.0  # between two writes of status.json
POLL_SECONDS = 0.05  # between two checks of processes that were asked to stop
DRAIN_SECONDS = 1.0  # processes that outlive the script may write into the log so long
END_SECONDS = 900.0  # for each part of the end: a kernel that holds a process, or a lost file system, never answers
REAP_SECONDS = 10.0  # for a killed process to be gone; one that a driver or a file system holds never is
F_SETPIPE_SZ = 1031  # fcntl has it from Python 3.10
PIPE_BYTES = 1 << 18  # that the job may be ahead: the agent wakes up once for as many, if much is written

EndAndCode = Tuple[End, Optional[int]]  # how the job ended, and its exit code


def supervise(run_dir: str, started: Callable[[], None]) -> None:
    """Run the plan in `run_dir` to its end. Calls `started` as soon as status.json exists. Raises if the run cannot
    start, never for what the job does: a later bug of ours ends the run as `error`."""
    paths = rd.RunDir(run_dir)
    plan = rd.read_record(Plan, paths.plan)
    if plan is None:
        raise RecordError(paths.plan, "", "missing")
    with SignalPipe() as signals:
        Supervisor(paths, plan, signals).run(started)


class Supervisor:
    def __init__(self, paths: rd.RunDir, plan: Plan, signals: SignalPipe) -> None:
        self.paths, self.plan, self.signals = paths, plan, signals
        self._secrets, self.started_at = rd.secret_values(plan), time.time()
        self.log = rd.RunLog(paths.log, self._secrets)
        self.own = rd.opened(paths.path)  # for what is written while the job runs
        self.timeout, self.stall = plan.timeout_minutes * 60, plan.stall_minutes * 60
        self._oom_kills = processes.oom_kills()
        began = {"started_at": self.started_at, "secrets": rd.given_secrets(plan), "shell": rd.shell_variables()}
        self.status = Status("running", **began, **processes.identity()._asdict())  # type: ignore[arg-type]
        self.began = self.last_output = self.last_heartbeat = self.last_poll = self.last_client = time.monotonic()
        self.deadline = self.began + self.timeout
        self.resources = RunResources(plan)
        self.cleanup = RunCleanup(paths, plan)
        containers = RunContainers(paths.path).ids  # of its own: another thread asks
        self.gpus = GpuSampler(paths, self.own, plan, lambda: self.status.gpu_uuids, containers)
        # What a job of the same account could change, and must not: it is noticed.
        inputs = (paths.plan, paths.script, paths.agent, paths.adapter)
        self._own_files: Dict[str, bytes] = {path: content_of(path, rd.LARGEST) for path in inputs}
        self.hang = hang.HangWatcher(paths, plan.hang_minutes * 60, self.timeout)
        self.left: List[int] = []  # processes that could not be killed
        self.output: Optional[int] = None  # the job's, until it has ended

    def run(self, started: Callable[[], None]) -> None:
        threading.excepthook = self._log_thread
        processes.become_subreaper()
        self.lock = processes.agent_lock(self.paths.path)
        self._write_status()  # a run without a status does not start
        started()
        self._event("started")
        for name in rd.unmasked_secrets(self.plan):
            self.log.write_line("ci-tasks: %s is too short or too common to mask" % name)
        end: EndAndCode = "error", None
        try:
            end = self._execute()
        except ResourcesUnavailable as reason:
            end = self._blocked(str(reason))
        except Exception as error:  # whatever it is, the run must end, with a status and without processes
            self._set(error=str(error) if isinstance(error, OSError) else repr(error))
            rd.log_traceback(self.paths.path, "the job's supervisor", error)
            self._kill()
        self._finish(*end)

    def _log_thread(self, failed: threading.ExceptHookArgs) -> None:
        if failed.exc_value is not None:
            rd.log_traceback(self.paths.path, "thread %s" % getattr(failed.thread, "name", "?"), failed.exc_value)

    def _execute(self) -> EndAndCode:
        """Wait until the job may start, run it, and end all of its processes."""
        self._poll_resources()
        end = self._wait(lambda: self.resources.are_ready)
        if end == "timeout":
            raise ResourcesUnavailable(self._timeout_reason())
        if end == "cancelled":
            return end, None
        self.last_output = time.monotonic()
        job = self._start()
        # It is not reaped: as long as it is a zombie, its process group's number can be no other's.
        end = self._wait(lambda: os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
        why_blocked = self._why_blocked() if end == "timeout" else None
        if end == "exit":
            self._drain()
        else:
            self._terminate()
        self._kill()
        self._drain()
        assert job.stdout is not None
        job.stdout.close()
        code: Optional[int] = None  # of a process that cannot be killed
        with suppress(subprocess.TimeoutExpired):
            code = job.wait(REAP_SECONDS)
        if code is not None and code < 0:  # as a shell says it
            code = 128 - code
        return self._blocked(why_blocked) if why_blocked else (end, code)

    def _why_blocked(self) -> Optional[str]:
        """Why the job could not end in time, if that is not its own doing."""
        if self.resources.waiting:
            return self._timeout_reason()
        silence = self.plan.image and self._while_beating(self.cleanup.containers.silence)
        return "%s; timeout after %g min" % (silence, self.timeout / 60) if silence else None

    def _timeout_reason(self) -> str:
        waiting = "; ".join(self.resources.waiting) or "the state of the GPUs is unknown"
        return "waited for %g min: %s" % (self.timeout / 60, waiting)

    def _blocked(self, reason: str) -> EndAndCode:
        self.log.write_line(rd.BLOCKED + reason)
        return "exit", rd.EXIT_BLOCKED

    def _poll_resources(self) -> None:
        """Put the state of the resources on record; at once if it changes what the run does."""
        self.resources.poll()
        before, now = self.status, time.monotonic()
        queued = before.queue_seconds + (now - self.last_poll if before.waiting else 0.0)
        self.last_poll, waiting = now, tuple(self.resources.waiting)
        self._set(waiting=waiting, phase=self.resources.phase, queue_seconds=queued)
        if self.resources.gpu_ids is not None and before.gpu_ids is None:
            ids = tuple(self.resources.gpu_ids)
            self._set(gpu_ids=ids, gpu_uuids=tuple(self.resources.gpu_uuids))
            self._event("gpus", ids=ids)
        if self.status.phase != before.phase and waiting:
            self._event("waiting", reasons=waiting)
        changed = (self.status.phase, self.status.gpu_ids) != (before.phase, before.gpu_ids)
        if changed or now >= self.last_heartbeat + HEARTBEAT_SECONDS:
            self._heartbeat()

    def _start(self) -> "subprocess.Popen[bytes]":
        env = {**rd.job_environment(self.plan, self.paths.path), **self.resources.environ}
        files = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        own = {"start_new_session": True, "pass_fds": self.resources.descriptors}
        job = processes.start(["bash", self.paths.script], env, self.paths.path, **files, **own)
        assert job.stdout is not None
        self.output = job.stdout.fileno()
        with suppress(OSError):  # this user has no room for more
            fcntl.fcntl(self.output, F_SETPIPE_SZ, PIPE_BYTES)
        self._set(group=job.pid)
        self._heartbeat()
        self.gpus.start()
        return job

    def _wait(self, is_over: Callable[[], bool]) -> End:
        """Wait until something is over, or has to be. What ended meanwhile was neither cancelled nor timed out."""
        while not is_over():
            # A look at the processes ends before they are ended.
            is_late = time.monotonic() >= self.deadline + (hang.MAX_SECONDS if self.hang.is_looking else 0.0)
            if self.signals.stop_requested or is_late:
                end: End = "cancelled" if self.signals.stop_requested else "timeout"
                self._event(end)
                return end
            self._pump(max(self.deadline, time.monotonic() + POLL_SECONDS))
        return "exit"

    def _terminate(self) -> None:
        """SIGTERM, then the grace period. What the job prints meanwhile is logged: a full pipe would block it."""
        self.resources.stop_waiting()
        deadline = time.monotonic() + self.plan.grace_seconds
        told: set[int] = set()
        while processes.terminate(self.paths.path, self.status.group, told) and time.monotonic() < deadline:
            self._pump(time.monotonic() + POLL_SECONDS)

    def _drain(self) -> None:
        """Log what is still in the pipe; processes that outlive the script get a moment."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline and self.output is not None:
            self._pump(deadline)

    def _kill(self) -> None:
        # The clients of docker first: one of them could start a container after the others were stopped.
        killed = processes.kill_all(self.paths.path, self.status.group)
        self._while_beating(self.cleanup.containers.stop)  # they and their files stay, for their logs
        # Only now those without mark and group: the parent of a podman container, which ends with it, is one of them.
        job, self.left = processes.kill_job(self.status.group)
        killed += job
        if killed:
            self._event("killed", killed=killed)

    def _pump(self, until: float) -> None:
        """Wait for output or a signal until something else is due; move the output into the log."""
        stall = until if self.status.stalled else self.last_output + self.stall
        due = min(until, self.last_heartbeat + HEARTBEAT_SECONDS, stall, self.resources.next_poll_at)
        waits = [self.signals.fd] if self.output is None else [self.output, self.signals.fd]
        ready = select.select(waits, [], [], max(0.0, due - time.monotonic()))[0]
        if ready != [self.output]:
            self.signals.clear()
            processes.reap_orphans(self.status.group)
        chunk = b""
        if self.output is not None and self.output in ready:
            chunk = os.read(self.output, PIPE_BYTES)
            self.log.write(chunk)
            self.resources.read_output(chunk)
            self.output = self.output if chunk else None
        self._poll_resources()
        # torch says that it writes its flight recorder, for which a look asks it; who waits for GPUs may be silent.
        if self.status.phase != "running" or (chunk and not self.hang.is_looking):
            self.last_output = time.monotonic()
        silent = time.monotonic() - self.last_output
        if silent > self.status.longest_silence:
            self._set(longest_silence=round(silent, 1))
        is_stalled = silent >= self.stall
        if is_stalled != self.status.stalled:
            self._set(stalled=is_stalled)
            self._event("stalled", minutes=self.stall / 60) if is_stalled else self._event("resumed")

    def _finish(self, end: End, code: Optional[int]) -> None:
        # Not the clock's time, which may have been set meanwhile: a run takes as long as it takes.
        ended_at = self.started_at + time.monotonic() - self.began
        self._set(phase="collecting")
        self.hang.close()
        self.resources.close()
        self._while_beating(self.gpus.close)
        self.log.close()
        if self._while_beating(self.log.is_intact) is False:
            self._note_changed(self.paths.log)
        self._event("ended", end=end, exit_code=code)
        now = processes.oom_kills()
        self._set(oom_kills=None if now is None or self._oom_kills is None else now - self._oom_kills)
        self._while_beating(lambda: self.cleanup.finish(end == "exit" and code == 0, self.gpus.found))
        processes.kill_everything()
        for path, content in self._own_files.items():
            if content_of(path, rd.LARGEST) != content:
                self._note_changed(path)
        if os.path.basename(self.paths.plan) in self.status.changed:
            with suppress(OSError):
                replace_any(self.own.plan, self._own_files[self.paths.plan])  # by it the run is judged
        self._set(state="ended", phase="ended", end=end, exit_code=code, ended_at=ended_at, waiting=())
        left = (*self.cleanup.left, *("process %d was killed, but has not ended" % pid for pid in self.left))
        self._set(log_sha256=self.log.sha256, kept=self.cleanup.kept, masked=self.cleanup.masked, left=left)
        # The end must be on record even if the disk was full a moment ago.
        for _ in range(60):
            if self._heartbeat():
                break
            time.sleep(1)
        self.lock.close()  # from here on the end is believed

    # -- what is on record ---------------------------------------------------------------------------------------------

    def _set(self, **facts: Any) -> None:
        self.status = replace(self.status, **facts)

    def _note_changed(self, path: str) -> None:
        name = os.path.relpath(path, self.paths.path)
        if name not in self.status.changed:
            self._set(changed=(*self.status.changed, name))

    def _while_beating(self, work: Callable[[], rd.T]) -> Optional[rd.T]:
        """The result of `work`. Meanwhile there are heartbeats, and orphans are reaped. None if it raises or takes
        longer than END_SECONDS."""
        results: List[rd.T] = []
        thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
        thread.start()
        until = time.monotonic() + END_SECONDS
        while thread.is_alive() and time.monotonic() < until:
            thread.join(POLL_SECONDS)
            processes.reap_orphans(self.status.group)
            if time.monotonic() >= self.last_heartbeat + HEARTBEAT_SECONDS:
                self._heartbeat()
        return results[0] if results else None

    def _heartbeat(self) -> bool:
        """Whether the status could be written."""
        self.last_heartbeat = time.monotonic()
        if self.status.group is not None and self.status.phase == "running":
            self.hang.poll(time.monotonic() - self.last_output, self.deadline - time.monotonic())
        self._check_client()
        try:
            self._write_status()
        except OSError:
            return False
        return True

    def _check_client(self) -> None:
        """Cancel a run that is of no use without a client, some time after the last one that waited for it."""
        seconds = self.plan.client_seconds
        if seconds is None or self.signals.stop_requested or self.status.phase == "collecting":
            return
        if processes.has_client(self.paths.path):
            self.last_client = time.monotonic()
        elif time.monotonic() >= self.last_client + seconds:
            self.log.write_line("ci-tasks: cancelled: no client waits for it")
            self.signals.stop_requested = True

    def _write_status(self) -> None:
        written = self._own_files.get(self.paths.status)
        if written is not None and content_of(self.paths.status, rd.LARGEST) != written:
            self._note_changed(self.paths.status)
        number = self.status.sequence + 1
        self._set(sequence=number, heartbeat_at=time.time(), log_bytes=self.log.bytes, log_error=self.log.error)
        content = rd.record_bytes(masked_record(self.status, self._secrets))
        replace_any(self.own.status, content)
        self._own_files[self.paths.status] = content

    def _event(self, name: str, **facts: object) -> None:
        event = masked_record(Event(round(time.time(), 3), name, **facts), self._secrets)  # type: ignore[arg-type]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe does not block it
        try:
            with os.fdopen(os.open(self.own.events, flags, 0o666), "wb") as out:
                out.write(event.line().encode())
        except OSError as error:
            self.log.error = self.log.error or "events could not be written: %s" % error.strerror


# -- as a batch job, with the GPUs that Slurm allocated ----------------------------------------------------------------

_NODE_GPUS = "SLURM_JOB_GPUS"
# What the programs need that start a container.
_RUNTIME_PREFIXES = {"pyxis": ("SLURM", "ENROOT_", "PYXIS_"), "apptainer": ("APPTAINER_", "SINGULARITY_")}
# A lock script of the checkout would take the lowest GPUs of the node without a locked file, even another job's: its
# locks know nothing of Slurm's, and where a job sees only its own GPUs, Slurm numbers them from 0 for every job.
_LOCK_SCRIPT = '''#!/usr/bin/env python3
"""Put here by ci-tasks in place of the checkout's lock script: the job has the GPUs that Slurm allocated."""
import os
import sys

gpus = {gpus!r}
count, dashes = int(sys.argv[sys.argv.index("--count") + 1]), sys.argv.index("--") + 1
if count > len(gpus):
    sys.exit(f"[gpu_lock_exec] Slurm allocated the GPUs {{','.join(gpus)}}, and {{count}} are needed")
os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[:count])
print("[gpu_lock_exec] Acquired GPUs: " + os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
os.execvp(sys.argv[dashes], sys.argv[dashes:])
'''


def batch(run_dir: str) -> int:
    """Run the plan to its end. Returns the exit code for Slurm: the job's own."""
    paths = rd.RunDir(run_dir)
    job, plan, job_id = slurm.read(run_dir), rd.read_plan(paths), os.environ.get("SLURM_JOB_ID")
    if rd.read_status(paths).concluded or (job and job_id and job.id not in ("", job_id)):
        sys.exit("ci-tasks: %s has ended, or was submitted again" % run_dir)
    is_requeued = os.path.exists(paths.attempt)
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    start = SlurmAllocation(job_id, os.environ.get("SLURMD_NODENAME"), restarts)
    rd.write_record(paths.attempt, start)
    os.environ.update(slurm.read_secrets(run_dir))
    problem = ""
    passed: Dict[str, str] = {}
    try:
        if is_requeued:
            _start_over(paths, job, plan)
        passed = job_variables(plan, os.environ)
        if plan.gpu_locks is not None and plan.gpu_locks.script and plan.workspace:
            replace_lock_script(os.path.join(plan.workspace, plan.gpu_locks.script), gpus(passed))
    except (ResourcesUnavailable, StoreError, OSError) as error:
        problem = str(error)
    signal.pthread_sigmask(signal.SIG_BLOCK, processes.BLOCKED_AT_START)
    with processes.SignalPipe() as wake:
        # Slurm decides which GPUs the job has, and who shares the node.
        plan = replace(plan, gpu_locks=None, exclusive=(), host_env={**plan.host_env, **passed})
        agent = _BatchSupervisor(paths, plan, wake)
        if is_requeued:
            place = "(requeue %d), on %s" % (restarts, start.node)
            agent.log.write_line("ci-tasks: Slurm started the job again %s; it starts over in a new checkout" % place)
        agent.prepare(start, passed, problem)
        agent.run(lambda: None)
    slurm.delete_secrets(run_dir)
    return slurm.batch_exit_code(agent.status)  # not what status.json says by now: the job can write that


class _BatchSupervisor(Supervisor):
    """A supervisor whose job Slurm may end, and may have started elsewhere meanwhile."""

    def prepare(self, start: SlurmAllocation, passed: Mapping[str, str], problem: str) -> None:
        self._start_mark, self._problem = start, problem
        # How long the job waited, by the file system's clock alone: the login node's clock may differ.
        submitted, began = map(os.path.getmtime, (self.paths.slurm_job, self.paths.attempt))
        self.status = replace(
            self.status,
            slurm=start,
            queue_seconds=max(0.0, began - submitted),
            gpu_ids=tuple(int(gpu) for gpu in gpus(passed) if gpu.isdigit()) or None,
        )

    def _execute(self) -> EndAndCode:
        return self._blocked(self._problem) if self._problem else super()._execute()

    def _write_status(self) -> None:
        if rd.read_record(SlurmAllocation, self.paths.attempt) not in (None, self._start_mark):
            # A node that was thought to be down goes on, while the job runs elsewhere: the record is the other's.
            processes.kill_everything()
            os._exit(1)
        super()._write_status()


def _start_over(paths: rd.RunDir, job: Optional[SlurmJob], plan: Plan) -> None:
    """Remove what an earlier attempt left, which would be taken for this one's, and check out again: unless rows share
    the checkout. Raises StoreError, OSError."""
    for path in (paths.artifacts, os.path.join(paths.path, "tmp")):
        shutil.rmtree(path, ignore_errors=True)
    for name in ("docker.json", "environment.json", "gpu.csv"):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(paths.path, name))
    os.makedirs(paths.artifacts, exist_ok=True)
    if job is not None and job.parts:
        TreeStore(job.store).check_out(job.parts, plan.workspace)


# -- the GPUs that Slurm allocated -------------------------------------------------------------------------------------


def job_variables(plan: Plan, environ: Mapping[str, str]) -> Dict[str, str]:
    """The variables of the batch script that its job gets on top of those of any job: as many GPUs as it needs; all of
    Slurm's where these start its container. Raises ResourcesUnavailable."""
    prefixes = _RUNTIME_PREFIXES.get(plan.container_runtime or "", ())
    names = ("SLURM_JOB_ID", _NODE_GPUS, VISIBLE_GPUS)
    passed = {name: value for name, value in environ.items() if name in names or name.startswith(prefixes)}
    count = plan.gpu_locks.count if plan.gpu_locks is not None else 0
    allocated = [gpu for gpu in gpus(passed) if gpu != "NoDevFiles"]
    if len(allocated) < count:
        message = "Slurm allocated %d GPUs to the job (CUDA_VISIBLE_DEVICES=%s), the row needs %d"
        raise ResourcesUnavailable(message % (len(allocated), passed.get(VISIBLE_GPUS, ""), count))
    given = {name: passed[name].split(",")[:count] for name in (VISIBLE_GPUS, _NODE_GPUS) if count and name in passed}
    return {**passed, **{name: ",".join(few) for name, few in given.items()}}


def gpus(passed: Mapping[str, str]) -> List[str]:
    """The job's GPUs as it sees them, and as nvidia-smi numbers them there."""
    return [gpu for gpu in passed.get(VISIBLE_GPUS, "").split(",") if gpu]


def replace_lock_script(path: str, allocated: List[str]) -> None:
    """Replace the lock script in a run's own checkout. Raises OSError."""
    if os.path.isfile(path) and not os.path.islink(path):  # else the row's steps fail, and say why
        with open(path, "w", encoding="utf-8") as out:
            out.write(_LOCK_SCRIPT.format(gpus=allocated))
