"""Lock files between real processes and users, and who holds one."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ci_tasks.agent.gpus import lock_files
from ci_tasks.agent.gpus.lock_files import HeldLock, LockError

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost

ME = getpass.getuser()
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def _attempt(path: str) -> str:
    """Whether a process of its own could lock the file with CI's way of opening it."""
    text = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    done = subprocess.run([sys.executable, "-c", text, path], capture_output=True, text=True)
    return "" if done.returncode == 0 else str(done.stderr.splitlines()[-1])


@pytest.mark.parametrize("released", [True, False])
def test_an_inherited_lock_outlives_its_taker_until_it_is_released(gpu_host: GpuHost, released: bool) -> None:
    descriptor = lock_files.try_lock(gpu_host.lock(0))
    assert descriptor is not None
    assert lock_files.try_lock(gpu_host.lock(0)) is None
    child = subprocess.Popen(["sleep", "300"], pass_fds=[descriptor])
    try:
        lock_files.release(descriptor) if released else os.close(descriptor)  # as for an agent that is killed
        assert _attempt(gpu_host.lock(0)).partition(":")[0] == ("" if released else "BlockingIOError")
    finally:
        child.kill()
        child.wait()


def test_a_new_lock_file_is_every_users_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        lock_files.create_missing([str(tmp_path / "new" / "lock")])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "lock").stat().st_mode) == 0o666


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("fifo", "dir", "link"):
        with pytest.raises(LockError, match=name):
            lock_files.try_lock(str(tmp_path / name))
    assert not (tmp_path / "elsewhere").exists()


PROTECTED = {
    "/dev/shm, a person": (0o41777, 0, 1000, "1", True),
    "/dev/shm, a kernel that does not mind": (0o41777, 0, 1000, "0", False),
    "/dev/shm, root": (0o41777, 0, 0, "1", False),
    "one's own directory": (0o41777, 1000, 1000, "1", False),
    "of a group": (0o41770, 0, 1000, "1", False),
}


@pytest.mark.parametrize(("mode", "owner", "user", "protected", "harm"), PROTECTED.values(), ids=PROTECTED)
def test_a_person_makes_no_file_that_would_lock_root_out(
    mode: int, owner: int, user: int, protected: str, harm: bool
) -> None:
    directory = os.stat_result((mode, 1, 1, 1, owner, 0, 0, 0, 0, 0))
    assert lock_files.blocks_other_users(directory, user, protected) is harm


def test_missing_files_that_only_root_may_make_are_named_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_files, "blocks_other_users", lambda *_: True)
    paths = [str(tmp_path / name) for name in ("a b", "c")]
    quoted = shlex.join(paths)
    with pytest.raises(LockError, match=re.escape(f"run once as root: touch {quoted} && chmod 666 {quoted}")):
        lock_files.create_missing(paths)
    assert not list(tmp_path.iterdir())
    Path(paths[0]).touch()
    assert lock_files.try_lock(paths[0]) is not None  # one that exists harms no user
    assert lock_files.try_lock(paths[1], own=True) is not None  # one that is never opened with O_CREAT neither


MODES = [(0o666, True), (0o644, True), (0o600, False)]


@needs_root
@pytest.mark.parametrize(("mode", "opens"), MODES)
def test_a_file_that_only_root_may_read_is_named_with_the_next_step(mode: int, opens: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        os.chmod(shared, 0o755)
        path = os.path.join(shared, "gpu 0.lock")
        Path(path).touch()
        os.chmod(path, mode)
        said = _as_nobody(lambda: lock_files.try_lock(path))
    assert said == ("" if opens else f"lock file {path}: Permission denied; run once as root: chmod 666 '{path}'")


def _as_nobody(call: Callable[[], object]) -> str:
    """What `call` says if it fails, in a process of another user; else what it returns."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(NOBODY)
            result = call()
            os.write(write, result.encode() if isinstance(result, str) else b"")
        except LockError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as said:
        return said.read()


# -- who holds what --------------------------------------------------------------------------------------------------

PROC_LOCKS = """\
1: FLOCK  ADVISORY  WRITE 21234 00:1b:8 0 EOF
2: POSIX  ADVISORY  READ  1080 fe:00:2097 128 128
3: FLOCK  ADVISORY  READ 77 fe:10:9 0 EOF
3: -> FLOCK  ADVISORY  WRITE 99 fe:10:9 0 EOF
4: OFDLCK ADVISORY  WRITE -1 00:05:12 0 0
5: FLOCK  ADVISORY  WRITE 0 00:1b:9 0 EOF
6: FLOCK  ADVISORY  WRITE x 00:1b 0 EOF
7: LEASE  ACTIVE    READ 5 00:1b:10 0 EOF
"""


def test_flocks_are_read_from_proc_locks() -> None:
    assert lock_files.parse_locks(PROC_LOCKS) == [
        HeldLock((0, 0x1B, 8), 21234, False),
        HeldLock((0xFE, 0x10, 9), 77, True),
        HeldLock((0, 0x1B, 9), 0, False),
    ]
    assert lock_files.parse_locks("") == []


def test_holders_are_found_by_file(gpu_host: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = gpu_host.hold(0, 2)
    gpu_host.hold(1, shared=True)
    assert lock_files.try_lock(gpu_host.lock(3)) is not None, "our own are left out"
    paths = {gpu: gpu_host.lock(gpu) for gpu in range(5)}
    assert lock_files.holders(paths) == {0: holder.pid, 2: holder.pid}
    monkeypatch.setattr(lock_files, "LOCKS", "/no/such/file")
    assert lock_files.holders(paths) == {}


def _plan(path: Path, id: str) -> str:
    path.mkdir(parents=True)
    (path / "plan.json").write_text(json.dumps({"id": id}))
    return str(path)


def test_a_process_of_a_run_is_told_by_its_mark(gpu_host: GpuHost, tmp_path: Path) -> None:
    run = _plan(tmp_path / "20260102-030405-ckpt-ab12" / "03", "20260102-030405-ckpt.03")
    holder, gone = gpu_host.hold(0, CI_TASKS_RUN_DIR=run), gpu_host.hold(1, CI_TASKS_RUN_DIR="/no/such/batch/03")
    assert lock_files.run_dir_of(holder.pid) == run
    assert lock_files.describe_process(holder.pid) == "run 20260102-030405-ckpt-ab12.03"
    assert lock_files.describe_process(gone.pid) == "run batch.03"


def test_an_agent_is_recognized_by_its_working_directory(gpu_host: GpuHost, tmp_path: Path) -> None:
    run = _plan(tmp_path / "batch" / "01", "batch.01")
    agent, other = (gpu_host.start(["sh", "-c", f"cd {shlex.quote(run)} && echo && exec sleep 300"]) for _ in range(2))
    (tmp_path / "batch" / "01" / "status.json").write_text(json.dumps({"pid": agent.pid}))
    assert agent.stdout and other.stdout and agent.stdout.readline() == other.stdout.readline()
    assert (lock_files.run_dir_of(agent.pid), lock_files.run_dir_of(other.pid)) == (run, None)


def test_any_other_process_is_its_command_line_in_one_line_with_secrets_hidden(gpu_host: GpuHost) -> None:
    process = gpu_host.start(["sh", "-c", "echo; read x", "A_TOKEN=verysecret", "two\nlines", "é"])
    assert process.stdout and process.stdout.readline()
    said = f"pid {process.pid} of {ME} (sh -c 'echo; read x' 'A_TOKEN=***' 'two?lines' 'é')"
    assert lock_files.describe_process(process.pid) == said
    long = lock_files.describe_process(gpu_host.hold(0).pid)
    assert re.fullmatch(rf"pid \d+ of {ME} \(.{{59}}…\)", long)
    for pid in (0, -1, 2**22 + 1):
        assert (lock_files.run_dir_of(pid), lock_files.describe_process(pid)) == (None, "an unknown process")


NUMBERS = [([5], "GPU 5"), ([0, 1, 2, 3], "GPUs 0-3"), ([7, 0, 2, 5, 6], "GPUs 0, 2, 5-7"), ([1, 2], "GPUs 1-2")]


@pytest.mark.parametrize(("gpus", "expected"), NUMBERS, ids=[expected for _, expected in NUMBERS])
def test_gpus_are_named_shortly(gpus: list[int], expected: str) -> None:
    assert lock_files.numbered("GPU", gpus) == expected
