"""The runner as what a batch job consists of: `python runner.pyz batch RUN_DIR`, on a compute node.

It stays in the foreground, so that Slurm ends it with the job and knows its exit code. A job that was requeued begins
anew, in a checkout of its own, on the same record: its log goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import Any, Dict, Optional

from .. import layout, process, supervise, wake
from ..code.objects import ID
from ..code.store import Store, StoreError
from ..environment import secret_values
from ..logfile import Log
from . import given
from . import job as jobs
from .fate import is_sure

_CHUNK = 1 << 20
_EXIT_CANCELLED, _EXIT_TIMEOUT, _EXIT_NONE = 130, 124, 1
_OF_AN_ATTEMPT = ("docker.json", "environment.json")


class _Cannot(Exception):
    """The run cannot begin here; the message says why."""


def batch(run_dir: str) -> int:
    """Run the plan to its end. Returns the exit code for Slurm: the job's own."""
    paths = layout.RunDir(run_dir)
    if is_sure(layout.read_json(paths.status)):
        print("ci-tasks: %s has ended, and does not begin again" % paths.path, file=sys.stderr)
        return _EXIT_NONE
    job = jobs.read(paths.path)
    plan = layout.read_json(paths.plan)
    again = bool(jobs.attempt(paths.path))
    mark = {**process.identity(), "job": _job(), "restarts": _restarts()}
    jobs.begin_attempt(paths.path, mark)
    os.environ.update(jobs.read_secrets(paths.path))
    problem, passed = "", {}
    try:
        if again:
            _clear(paths)
            if job is not None:
                _check_out_again(job, plan)
        passed = given.environment(plan, os.environ)
        _stand_in(plan, passed)
    except (_Cannot, given.NotGiven) as reason:
        problem = str(reason)
    except OSError as error:
        problem = "%s: %s" % (error.filename, error.strerror)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, wake.HELD)
    with wake.Wake() as asked:
        log = _Continued(paths.log, secret_values(plan))
        if again:
            log.start_over(mark)
        runner = _OnNode(paths, _on_node(plan, passed), log, asked)
        runner.begin(mark, given.gpu_ids(passed), problem)
        runner.run(lambda: None)
    jobs.forget_secrets(paths.path)
    return _exit_code(layout.read_json(paths.status))


class _OnNode(supervise._Supervisor):
    """A runner whose job Slurm may end, and may have begun elsewhere meanwhile."""

    def begin(self, mark: Dict[str, Any], gpu_ids: Any, problem: str) -> None:
        self._mark, self._problem = mark, problem
        self.status["slurm"] = {"job": mark["job"], "node": os.environ.get("SLURMD_NODENAME"), **_restarted(mark)}
        if gpu_ids:
            self.status["gpu_ids"] = gpu_ids

    def _execute(self) -> "tuple[str, Optional[int]]":
        return self._blocked(self._problem) if self._problem else super()._execute()

    def _finish(self, end: str, code: Optional[int]) -> None:
        # The signal that ends a job reaches its processes too, and theirs may be the first end to be seen.
        if self.wake.asked:
            self.status["signalled"] = True
        super()._finish(end, code)

    def _write_status(self) -> None:
        if jobs.attempt(self.paths.path) not in ({}, self._mark):
            # A node that was thought to be down goes on, while the job runs elsewhere: the record is the other's.
            if isinstance(self.status.get("group"), int):
                os.killpg(self.status["group"], signal.SIGKILL)
            os._exit(_EXIT_NONE)
        super()._write_status()


class _Continued(Log):
    """A log that may have a beginning already."""

    def __init__(self, path: str, secrets: Any) -> None:
        super().__init__(path, secrets)
        with open(path, "rb") as source:
            while True:
                chunk = source.read(_CHUNK)
                if not chunk:
                    break
                self._digest.update(chunk)
                self.bytes += len(chunk)
                self._last = chunk[-1:]

    _last = b"\n"

    def start_over(self, mark: Dict[str, Any]) -> None:
        """Say that what follows is another attempt, on a line of its own."""
        number = mark["restarts"]
        which = "requeue %d" % number if number else "once more"
        node = os.environ.get("SLURMD_NODENAME") or "another node"
        line = "ci-tasks: Slurm began the job again (%s), on %s; it starts over in a new checkout\n" % (which, node)
        self.write((b"" if self._last == b"\n" else b"\n") + line.encode("utf-8", "backslashreplace"))


def _on_node(plan: Dict[str, Any], passed: Dict[str, str]) -> Dict[str, Any]:
    """The plan as the runner is to see it: which GPUs, and who shares the node, is Slurm's to say."""
    return {**plan, "gpu_locks": None, "exclusive": [], "host_env": {**(plan.get("host_env") or {}), **passed}}


def _stand_in(plan: Dict[str, Any], passed: Dict[str, str]) -> None:
    script = (plan.get("gpu_locks") or {}).get("script")
    if script and plan.get("workspace"):
        given.stand_in(plan["workspace"], script, given.gpus(passed))


def _clear(paths: layout.RunDir) -> None:
    """What an earlier attempt left would be taken for this one's."""
    for path in (paths.artifacts, os.path.join(paths.path, "tmp")):
        shutil.rmtree(path, ignore_errors=True)
    for name in _OF_AN_ATTEMPT:
        try:
            os.unlink(os.path.join(paths.path, name))
        except FileNotFoundError:
            pass
    os.makedirs(paths.artifacts, exist_ok=True)


def _check_out_again(job: jobs.Job, plan: Dict[str, Any]) -> None:
    if not job.parts or not ID.fullmatch(job.parts[0]["tree"]):
        return  # a checkout that rows share is not ours to replace
    try:
        form = "sha256" if len(job.parts[0]["tree"]) == 64 else "sha1"
        Store(job.store, form).check_out([dict(part) for part in job.parts], plan["workspace"])
    except StoreError as error:
        raise _Cannot("the checkout could not be made again: %s" % error) from None


def _job() -> Optional[str]:
    """As squeue calls it."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return "%s_%s" % (array, index) if array else os.environ.get("SLURM_JOB_ID")


def _restarts() -> int:
    said = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(said) if said.isdigit() else 0


def _restarted(mark: Dict[str, Any]) -> Dict[str, Any]:
    return {"restarts": mark["restarts"]} if mark["restarts"] else {}


def _exit_code(status: Dict[str, Any]) -> int:
    if status.get("end") == layout.END_EXIT and isinstance(status.get("exit_code"), int):
        return int(status["exit_code"])
    return {layout.END_CANCELLED: _EXIT_CANCELLED, layout.END_TIMEOUT: _EXIT_TIMEOUT}.get(
        str(status.get("end")), _EXIT_NONE
    )
