"""Lock files between real processes."""

from __future__ import annotations

import os
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

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def _attempt(path: str, **options: int) -> str:
    """Whether a process of its own could lock the file with CI's way of opening it."""
    text = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    done = subprocess.run([sys.executable, "-c", text, path], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    return "" if done.returncode == 0 else str(done.stderr.splitlines()[-1])


def test_a_lock_that_another_process_has_is_not_waited_for(gpu_host: GpuHost) -> None:
    holder = gpu_host.hold(0)
    assert lock_files.try_lock(gpu_host.lock(0)) is None
    assert not lock_files.is_free(gpu_host.lock(0))
    gpu_host.end(holder)
    assert lock_files.is_free(gpu_host.lock(0))
    assert lock_files.try_lock(gpu_host.lock(0)) is not None


def test_a_release_counts_also_where_a_child_has_inherited_the_lock(gpu_host: GpuHost) -> None:
    descriptor = lock_files.try_lock(gpu_host.lock(0))
    assert descriptor is not None
    child = subprocess.Popen(["sleep", "300"], pass_fds=[descriptor])
    try:
        lock_files.release(descriptor)
        assert _attempt(gpu_host.lock(0)) == ""
    finally:
        child.kill()
        child.wait()


def test_an_inherited_lock_outlives_its_taker(gpu_host: GpuHost) -> None:
    descriptor = lock_files.try_lock(gpu_host.lock(0))
    assert descriptor is not None
    child = subprocess.Popen(["sleep", "300"], pass_fds=[descriptor])
    try:
        os.close(descriptor)  # as the kernel does for an agent that is killed
        assert _attempt(gpu_host.lock(0)).startswith("BlockingIOError")
    finally:
        child.kill()
        child.wait()


@needs_root
def test_a_file_that_only_root_may_write_is_locked_by_anybody(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch(0o644)
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == 0 and directory.stat().st_mode & 0o001 == 0:
            directory.chmod(directory.stat().st_mode | 0o011)
    text = "import sys; sys.path.insert(0, sys.argv[1]); import locks; assert locks.try_lock(sys.argv[2]) is not None"
    room = tmp_path / "room"
    room.mkdir()
    (room / "locks.py").write_text(Path(lock_files.__file__).read_text())
    python = "/usr/bin/python3"  # ours may lie where only root can go
    if not os.path.exists(python):
        pytest.skip("no python3 in /usr/bin")
    done = subprocess.run([python, "-c", text, str(room), str(path)], user=NOBODY, capture_output=True, text=True)
    assert done.stderr == ""


def test_a_new_lock_file_is_everybodys_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        os.close(lock_files.open_lock(str(tmp_path / "new" / "lock")))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "lock").stat().st_mode) == 0o666


def test_an_existing_lock_file_keeps_mode_and_content(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("mine")
    path.chmod(0o640)
    os.close(lock_files.open_lock(str(path)))
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("mine", 0o640)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("fifo", "dir", "link"):
        with pytest.raises(LockError, match=name):
            lock_files.open_lock(str(tmp_path / name))
    assert not (tmp_path / "elsewhere").exists()


PROTECTED = {
    "/dev/shm, a person": (0o41777, 0, 1000, "1", True),
    "/dev/shm, a stricter kernel": (0o41777, 0, 1000, "2", True),
    "/dev/shm, a kernel that does not mind": (0o41777, 0, 1000, "0", False),
    "/dev/shm, root": (0o41777, 0, 0, "1", False),
    "one's own directory": (0o41777, 1000, 1000, "1", False),
    "not sticky": (0o40777, 0, 1000, "1", False),
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
    with pytest.raises(LockError, match=r"run once as root: touch '.*/a b' .*/c && chmod 666 '.*/a b' .*/c"):
        lock_files.create_missing(paths)
    with pytest.raises(LockError):
        lock_files.try_lock(paths[0])
    assert not list(tmp_path.iterdir())
    Path(paths[0]).touch()
    assert lock_files.try_lock(paths[0]) is not None  # one that is there harms nobody
    assert lock_files.try_lock(paths[1], own=True) is not None  # one that nobody opens with O_CREAT neither


@needs_root
@pytest.mark.parametrize(
    ("mode", "opens", "writes"), [(0o666, True, True), (0o644, True, False), (0o600, False, False)]
)
def test_files_that_only_root_may_write_are_named_with_the_next_step(mode: int, opens: bool, writes: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        os.chmod(shared, 0o755)
        path = os.path.join(shared, "gpu 0.lock")
        Path(path).touch()
        os.chmod(path, mode)
        remedy = f"run once as root: chmod 666 '{path}'"
        said = [_as_nobody(lambda: lock_files.try_lock(path)), _as_nobody(lambda: lock_files.check_writable([path]))]
    assert said == [
        "" if opens else f"lock file {path}: Permission denied; {remedy}",
        "" if writes else f"only its owner may write the lock file {path}; {remedy}",
    ]


def _as_nobody(call: Callable[[], object]) -> str:
    """What `call` says where it fails, in a process of another user."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(NOBODY)
            call()
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
        HeldLock((0, 0x1B), 8, 21234, False),
        HeldLock((0xFE, 0x10), 9, 77, True),
        HeldLock((0, 0x1B), 9, 0, False),
    ]
    assert lock_files.parse_locks("") == []


def test_holders_are_found_by_file(gpu_host: GpuHost) -> None:
    one, other = gpu_host.hold(0, 2), gpu_host.hold(1, shared=True)
    another = gpu_host.hold(1, shared=True)
    paths = {gpu: gpu_host.lock(gpu) for gpu in range(5)}
    Path(paths[3]).touch()
    locks = {gpu: [(held.pid, held.shared) for held in who] for gpu, who in lock_files.held_locks(paths).items()}
    assert sorted(locks.pop(1)) == sorted([(other.pid, True), (another.pid, True)])
    assert locks == {0: [(one.pid, False)], 2: [(one.pid, False)]}


def test_without_proc_locks_no_holder_is_known(gpu_host: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_host.hold(0)
    monkeypatch.setattr(lock_files, "LOCKS", "/no/such/file")
    assert lock_files.held_locks({0: gpu_host.lock(0)}) == {}
