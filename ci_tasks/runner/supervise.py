"""Watches one job from its start to its end: log, events, status, heartbeat, timeout, stall, cancel.

The runner leaves its caller's session, so that a dropped link or a closed laptop means nothing to the job. It says how the
job ended and leaves it to the judge to say what that means.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from typing import Any, Dict, Optional

from . import containers, layout, process
from .environment import job_environment
from .logfile import Log

VERSION = 1
HEARTBEAT = 2.0  # seconds between two writes of status.json
PATIENCE = 10.0  # seconds between the request to stop and the kill
DRAIN = 1.0  # seconds that processes which outlive the script may still write into the log
CHUNK = 1 << 16


def supervise(run_dir: str) -> None:
    """Run the plan in `run_dir` to its end. Never raises for what the job does; a fault of ours ends it as `error`."""
    paths = layout.RunDir(run_dir)
    plan = layout.read_json(paths.plan)
    secrets = [os.environ[name] for name in plan.get("secrets", []) if os.environ.get(name)]
    with _Signals() as wake:
        _Supervisor(paths, plan, Log(paths.log, secrets), wake).run()


class _Signals:
    """Turns SIGTERM and SIGINT into a readable file descriptor, so that one wait serves output and signals."""

    def __enter__(self) -> _Signals:
        self.read, write = os.pipe()
        os.set_blocking(write, False)
        self.received = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(write)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)

    def _note(self, _number: int, _frame: object) -> None:
        self.received = True


class _Supervisor:
    def __init__(self, paths: layout.RunDir, plan: Dict[str, Any], log: Log, wake: _Signals) -> None:
        self.paths, self.plan, self.log, self.wake = paths, plan, log, wake
        self.status: Dict[str, Any] = {
            "version": VERSION,
            "state": layout.STATE_RUNNING,
            "started_at": time.time(),
            **process.identity(),
        }
        self.begun = time.monotonic()
        self.heard = self.begun
        self.stalled = False

    def run(self) -> None:
        self._beat()
        self._event("started")
        try:
            end, code = self._watch(self._start())
        except OSError as error:
            end, code = layout.END_ERROR, None
            self.status["error"] = str(error)
        self._clean_up()
        self._finish(end, code)

    def _start(self) -> subprocess.Popen[bytes]:
        job = subprocess.Popen(
            ["bash", self.paths.script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.paths.path,
            env=job_environment(self.plan, self.paths.path),
            start_new_session=True,
        )
        self.status["group"] = job.pid
        self._beat()
        return job

    def _watch(self, job: subprocess.Popen[bytes]) -> "tuple[str, Optional[int]]":
        assert job.stdout is not None
        end = layout.END_EXIT
        deadline = self.begun + float(self.plan["timeout_minutes"]) * 60
        beat = self.begun + HEARTBEAT
        with selectors.DefaultSelector() as selector:
            selector.register(job.stdout, selectors.EVENT_READ)
            selector.register(self.wake.read, selectors.EVENT_READ)
            while job.poll() is None:
                self._pump(selector, min(beat, deadline) - time.monotonic(), job)
                now = time.monotonic()
                if now >= beat:
                    self._beat()
                    beat = now + HEARTBEAT
                if self.wake.received or now >= deadline:
                    end = layout.END_CANCELLED if self.wake.received else layout.END_TIMEOUT
                    self._event(end)
                    self._stop(job)
            self._drain(selector, job)
        return end, job.returncode if job.returncode >= 0 else 128 - job.returncode

    def _pump(self, selector: selectors.BaseSelector, patience: float, job: subprocess.Popen[bytes]) -> None:
        """Move output that is there into the log; wait for some at most `patience` seconds, at most a quarter second
        since the job may end without closing its output (a daemon of its keeps it)."""
        for key, _ in selector.select(max(0.0, min(patience, 0.25))):
            if key.fileobj is not job.stdout:
                os.read(self.wake.read, CHUNK)
                continue
            chunk = os.read(key.fd, CHUNK)
            if chunk:
                self.log.write(chunk)
                self._hear()
            else:
                selector.unregister(key.fileobj)
        self._notice_stall()

    def _hear(self) -> None:
        self.heard = time.monotonic()
        if self.stalled:
            self.stalled = False
            self._event("resumed")

    def _notice_stall(self) -> None:
        minutes = float(self.plan["stall_minutes"])
        if not self.stalled and time.monotonic() - self.heard > minutes * 60:
            self.stalled = True
            self._event("stalled", minutes=minutes)

    def _drain(self, selector: selectors.BaseSelector, job: subprocess.Popen[bytes]) -> None:
        """What is still in the pipe belongs to the log; what outlives the script gets a moment, then is ended."""
        deadline = time.monotonic() + DRAIN
        while job.stdout in [key.fileobj for key in selector.get_map().values()] and time.monotonic() < deadline:
            self._pump(selector, 0.05, job)

    def _stop(self, job: subprocess.Popen[bytes]) -> None:
        containers.remove(self.paths.path)
        process.end_all(self.paths.path, job.pid, PATIENCE)
        job.wait()

    def _clean_up(self) -> None:
        containers.remove(self.paths.path)
        left = process.kill_all(self.paths.path, self.status.get("group"))
        if left:
            self._event("leftovers", killed=left)
        shutil.rmtree(os.path.join(self.paths.path, "tmp"), ignore_errors=True)

    def _finish(self, end: str, code: Optional[int]) -> None:
        self.log.close()
        self.status.update(
            state=layout.STATE_ENDED, end=end, exit_code=code, ended_at=time.time(), log_sha256=self.log.sha256
        )
        self._event("ended", end=end, exit_code=code)
        # The end must be on record even where the disk was full a moment ago.
        for _ in range(60):
            if self._beat():
                return
            time.sleep(1)

    def _beat(self) -> bool:
        self.status.update(
            heartbeat_at=time.time(), log_bytes=self.log.bytes, log_error=self.log.error, stalled=self.stalled
        )
        try:
            layout.write_json(self.paths.status, self.status)
        except OSError:
            return False
        return True

    def _event(self, name: str, **more: Any) -> None:
        line = json.dumps({"t": round(time.time(), 3), "event": name, **more}) + "\n"
        try:
            with open(self.paths.events, "a", encoding="utf-8") as out:
                out.write(line)
        except OSError as error:
            self.log.error = self.log.error or "events could not be written: %s" % error.strerror
