"""Locks of GPUs and of the host, against real processes, the sample's lock script, and each other; who holds one."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import random
import re
import shlex
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import gpu_locks, nvidia_smi
from ci_tasks.agent.codec import RecordError, decode
from ci_tasks.agent.gpu_locks import ResourcesUnavailable, RunResources
from ci_tasks.agent.nvidia_smi import Gpu, GpuProcess, GpuSnapshot
from ci_tasks.agent.records import AGENT, JOB, GpuRequest, Plan

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost

Until = Callable[..., Any]
ME = getpass.getuser()
SCRIPT = Path(__file__).parents[2] / "examples/tiny-slime/tests/ci/gpu_lock_exec.py"
WAITS = b"[gpu_lock_exec] try_acquire_count failed, sleep and retry (only got: [0])\n"


class Monitor:
    """Shows the snapshot that a test sets."""

    def __init__(self) -> None:
        self.see(8)

    def see(self, count: int, *apps: GpuProcess, problem: str = "") -> None:
        gpus = tuple(Gpu(at, f"GPU-{at}", "H200", "580", 4, 143771) for at in range(count))
        self.latest = GpuSnapshot(gpus, apps, problem)


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Monitor:
    made = Monitor()
    shown = property(lambda _: made.latest, lambda _, snapshot: setattr(made, "latest", snapshot))
    monkeypatch.setattr(RunResources, "latest", shown)
    monkeypatch.setattr(RunResources, "_watch_gpus", lambda _: None)
    return made


@pytest.fixture
def new(
    gpu_host: GpuHost, monitor: Monitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RunResources]]:
    monkeypatch.setattr(gpu_locks, "REFRESH_SECONDS", 0)
    made: list[RunResources] = []

    def make(count: int, by: str = AGENT, **more: Any) -> RunResources:
        request = GpuRequest(count, by, gpu_host.pattern, **more)  # type: ignore[arg-type]
        made.append(RunResources(Plan(gpu_locks=request, image="i"), poll_seconds=0))
        made[-1].poll()
        return made[-1]

    yield make
    for resources in made:
        resources.close()


def test_the_agent_takes_the_lowest_free_gpus_and_shows_them_to_the_job(
    gpu_host: GpuHost, monitor: Monitor, new: Callable[..., RunResources]
) -> None:
    gpu_host.hold(1)
    monitor.see(4, GpuProcess("GPU-0", 42, 100, "x"))
    mine = new(2)
    assert (mine.are_ready, mine.gpu_ids, mine.gpu_uuids) == (True, [2, 3], ["GPU-2", "GPU-3"])
    assert mine.environ == {"CUDA_VISIBLE_DEVICES": "2,3", "CI_TASKS_GPU_IDS": "2,3"}
    assert (len(mine.descriptors), gpu_host.free(4)) == (2, [0])
    mine.close()
    assert gpu_host.free(4) == [0, 2, 3]


def test_all_or_none_and_who_holds_what_is_named(
    gpu_host: GpuHost, monitor: Monitor, new: Callable[..., RunResources], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = gpu_host.hold(0, 1, 3, CI_TASKS_RUN_DIR="/runs/batch/07")
    process, problem = GpuProcess("GPU-5", 4242, 62464, "python train.py"), "no answer from nvidia-smi within 20 s"
    monitor.see(6, process)
    mine = new(4)
    assert (mine.phase, mine.gpu_ids, gpu_host.free()) == ("waiting", None, [2, 4, 5, 6, 7])
    others = ["GPU 5: 61 GiB in use by pid 4242 (python train.py) without a lock", "GPUs 6-7 do not exist here"]
    assert mine.waiting == ["GPUs 0-1, 3 held by run batch.07", *others]
    monkeypatch.setattr(gpu_locks, "LOCKS", "/no/such/file")
    monitor.see(6, process, problem=problem)
    mine.poll()
    assert mine.waiting == ["GPUs 0-1, 3 held by an unknown process", *others, problem]
    gpu_host.end(holder)
    mine.poll()
    assert (mine.gpu_ids, mine.waiting, mine.phase) == ([0, 1, 2, 3], [], "running")


@pytest.fixture
def watching(gpu_host: GpuHost, monkeypatch: pytest.MonkeyPatch, until: Until) -> Iterator[RunResources]:
    """With an nvidia-smi that shows one GPU, which nobody may have."""
    monkeypatch.setattr(gpu_locks, "REFRESH_SECONDS", 0.01)
    gpu_host.smi(4)
    gpu_host.hold(0)
    resources = RunResources(Plan(gpu_locks=GpuRequest(1, AGENT, gpu_host.pattern), image="i"), 0)
    resources.poll()
    until(lambda: resources.latest is not None)
    yield resources
    resources.close()
    until(lambda: "nvidia-smi" not in [thread.name for thread in threading.enumerate()])


def test_what_nvidia_smi_shows_is_kept_over_a_failure(watching: RunResources, gpu_host: GpuHost, until: Until) -> None:
    gpu_host.smi(4, 4)
    until(lambda: watching.latest is not None and watching.latest.ids == [0, 1])
    gpu_host.smi_says("#!/bin/sh\necho lost; exit 15")
    until(lambda: watching.latest is not None and watching.latest.problem == "lost")
    assert watching.latest is not None and watching.latest.ids == [0, 1]


def test_while_one_nvidia_smi_hangs_no_other_is_started(
    watching: RunResources, gpu_host: GpuHost, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each could stay for ever in a driver that is stuck. What was known of the GPUs stays, with the problem."""
    monkeypatch.setattr(nvidia_smi, "TIMEOUT", 1.0)
    gpu_host.smi(4, 4)
    until(lambda: watching.latest is not None and watching.latest.ids == [0, 1])  # so the next one has this limit
    gpu_host.smi_says(f"#!/bin/sh\necho >> {shlex.quote(str(gpu_host.path))}/started\nexec sleep 300")
    until(lambda: watching.latest is not None and watching.latest.problem.startswith("no answer from nvidia-smi"))
    assert watching.latest is not None and watching.latest.ids == [0, 1]
    assert (gpu_host.path / "started").read_text() == "\n"


# -- the job's own script ----------------------------------------------------------------------------------------------


OUTPUTS = {
    "in pieces": ([b"[gpu_lock_exec] Acq", b"uired GPUs: 1,0\n"], [0, 1]),
    "after others": ([b"x\n[gpu_lock_exec] Acquired GPUs: 2\nmore"], [2]),
    "no whole line": ([b"[gpu_lock_exec] Acquired GPUs: 1"], None),
    "inside a line": ([b"he said [gpu_lock_exec] Acquired GPUs: 1\n"], None),
    "of a GPU that we hold": ([b"[gpu_lock_exec] Acquired GPUs: 7\n"], None),
    "a long line": ([b"x" * 9000, b"\n[gpu_lock_exec] Acquired GPUs: 3\n"], [3]),
}


@pytest.mark.parametrize(("chunks", "gpus"), OUTPUTS.values(), ids=OUTPUTS)
def test_the_scripts_message_says_which_gpus_the_job_has(
    monitor: Monitor, new: Callable[..., RunResources], chunks: list[bytes], gpus: list[int] | None
) -> None:
    monitor.see(4)
    mine = new(2, JOB)
    for chunk in chunks:
        mine.read_output(chunk)
    assert mine.gpu_ids == gpus


def test_a_gpu_that_is_used_without_a_lock_is_blocked_and_one_whose_user_has_its_lock_is_not(
    gpu_host: GpuHost, monitor: Monitor, new: Callable[..., RunResources]
) -> None:
    holder = gpu_host.hold(0, 1, CI_TASKS_RUN_DIR="/another/run/01")
    monitor.see(8, GpuProcess("GPU-0", holder.pid, 62464, "python"))
    mine = new(2, JOB)
    assert (mine.gpu_ids, mine.locks) == (None, {}), "another run's locks are not the job's"
    gpu_host.end(holder)  # gone, but its children still compute
    mine.poll()
    assert (list(mine.locks), gpu_host.free()) == ([0], [1, 2, 3, 4, 5, 6, 7])
    monitor.see(8)
    mine.poll()
    assert gpu_host.free() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_runs_that_block_the_same_gpus_leave_no_gap(
    gpu_host: GpuHost, monitor: Monitor, new: Callable[..., RunResources]
) -> None:
    monitor.see(4)
    one, other = new(1, JOB), new(1, JOB)
    one.close()
    assert gpu_host.free() == [0, 1, 2, 3]
    other.stop_waiting()
    assert gpu_host.free() == [0, 1, 2, 3, 4, 5, 6, 7]


def _end(using: dict[RunResources, tuple[list[int], list[int]]], resources: RunResources) -> None:
    for descriptor in using.pop(resources)[1]:
        os.close(descriptor)
    resources.close()


def _stand_in(pattern: str, count: int) -> dict[int, int]:
    """An attempt of CI's lock script: {GPU id: descriptor}, all or none."""
    held: dict[int, int] = {}
    for gpu in range(8):
        descriptor = os.open(pattern.format(gpu_id=gpu), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held[gpu] = descriptor
        except BlockingIOError:
            os.close(descriptor)
        if len(held) == count:
            return held
    for descriptor in held.values():
        os.close(descriptor)
    return {}


@pytest.mark.parametrize("seed", range(5))
def test_no_gpu_is_given_twice_and_every_client_gets_its_gpus(
    gpu_host: GpuHost, new: Callable[..., RunResources], seed: int
) -> None:
    """Twelve clients of one to eight GPUs, some with a script, in random order, each three times; a random one ends
    while it waits."""
    rng = random.Random(seed)
    left = [(rng.choice((1, 2, 4, 8)), rng.choice((AGENT, JOB))) for _ in range(36)]
    waiting: list[tuple[RunResources, int, str]] = []
    using: dict[RunResources, tuple[list[int], list[int]]] = {}  # GPUs, and descriptors of a script
    for _ in range(20000):
        if left and len(waiting) + len(using) < 12:
            count, by = left.pop()
            waiting.append((new(count, by, simulated=8), count, by))
        if using and rng.random() < 0.3:
            _end(using, rng.choice(list(using)))
        if waiting and rng.random() < 0.01:
            client = waiting.pop(rng.randrange(len(waiting)))
            client[0].close()
            left.append(client[1:])
        if not waiting:
            if not left:
                break
            continue
        resources, count, by = rng.choice(waiting)
        resources.poll()
        got = _stand_in(gpu_host.pattern, count) if by == JOB else {}
        if by == JOB:
            ids = ",".join(map(str, got))
            resources.read_output(f"[gpu_lock_exec] Acquired GPUs: {ids}\n".encode() if got else WAITS)
        if resources.gpu_ids is not None:
            assert by == AGENT or resources.gpu_ids == sorted(got)
            taken = {gpu for gpus, _ in using.values() for gpu in gpus}
            assert taken.isdisjoint(resources.gpu_ids), "given twice"
            using[resources] = resources.gpu_ids, list(got.values())
            waiting = [client for client in waiting if client[0] is not resources]
    assert (left, waiting) == ([], []), "a client starves, or all wait for each other"
    for resources in list(using):
        _end(using, resources)
    assert gpu_host.free() == [0, 1, 2, 3, 4, 5, 6, 7]


# -- what cannot be, and the host's named locks ------------------------------------------------------------------------

SHOWN = GpuSnapshot(tuple(Gpu(at, "", "", "580", 0, None) for at in range(4)))
PROBLEMS = [
    (GpuRequest(8), SHOWN, "this host has 4 GPUs, the job needs 8"),
    (GpuRequest(9, simulated=16), SHOWN, "this host has 8 GPUs, the job needs 9"),
    (GpuRequest(1), GpuSnapshot(problem="NVIDIA-SMI has failed"), "nvidia-smi shows no GPUs: NVIDIA-SMI has failed"),
    (GpuRequest(3, declared=2), GpuSnapshot(problem=nvidia_smi.NO_PROGRAM), "this host has 2 GPUs, the job needs 3"),
    (GpuRequest(1, pattern="/proc/{gpu_id}/x"), SHOWN, "lock file /proc/4/x: No such file or directory"),
]


@pytest.mark.parametrize(("request_", "snapshot", "reason"), PROBLEMS, ids=[reason for *_, reason in PROBLEMS])
def test_a_request_that_can_never_be_met_has_a_reason(
    monitor: Monitor, request_: GpuRequest, snapshot: GpuSnapshot, reason: str
) -> None:
    monitor.latest = snapshot
    with pytest.raises(ResourcesUnavailable, match=f"^{reason}$"):
        RunResources(Plan(gpu_locks=request_, image="i")).poll()


def test_named_locks_are_taken_in_order_and_none_past_one_that_is_held(gpu_host: GpuHost, tmp_path: Path) -> None:
    """So that two runs that want both cannot each have one."""
    holder = gpu_host.hold(str(gpu_host.path / "ci-tasks-a.lock"), CI_TASKS_RUN_DIR="/runs/batch/02")
    mine = RunResources(Plan(exclusive=("../b", "a")), 0)
    before = {path.name for path in gpu_host.path.parent.iterdir()}
    mine.poll()
    assert (mine.are_ready, len(mine.descriptors)) == (False, 1)  # "../b" comes before "a"
    assert mine.waiting == ["a held by run batch.02"]
    gpu_host.end(holder)
    mine.poll()
    assert (mine.are_ready, mine.waiting, len(mine.descriptors)) == (True, [], 2)
    assert {path.name for path in gpu_host.path.parent.iterdir()} == before, "a name cannot leave the directory"
    simulated = RunResources(
        Plan(exclusive=("a",), gpu_locks=GpuRequest(0, pattern=f"{tmp_path}/sim/{{gpu_id}}", simulated=1)), 0
    )
    simulated.poll()
    assert simulated.are_ready, "runs with simulated GPUs have their own"
    either = RunResources(Plan(exclusive=("a|c",)), 0)
    either.poll()
    assert (either.are_ready, len(either.descriptors)) == (True, 1), "one of several is free"
    mine.close()
    simulated.close()
    assert not gpu_locks.is_held(str(gpu_host.path / "ci-tasks-a.lock"))
    (gpu_host.path / "link").symlink_to("ci-tasks-b.lock")
    assert not gpu_locks.is_held(str(gpu_host.path / "link")), "what cannot be opened ends no run that waits"


def test_what_is_null_or_absent_in_the_plan_is_as_in_ci() -> None:
    value = {"count": 4, "by": "job", "simulated": None, "of_a_later_version": 1}
    request = decode(GpuRequest, value, where="plan.json")
    assert request == GpuRequest(4, "job", "/dev/shm/custom_gpu_lock_{gpu_id}.lock", 8, None)
    assert request.paths[5] == "/dev/shm/custom_gpu_lock_5.lock"
    assert GpuRequest(1, pattern="/a{b}/{0}/{gpu_id}", total=2).paths == {0: "/a{b}/{0}/0", 1: "/a{b}/{0}/1"}
    for more in ({"pattern": "/dev/shm/lock"}, {"by": "magic"}):
        with pytest.raises(RecordError, match="gpu_locks"):
            decode(Plan, {"gpu_locks": {"count": 1, **more}}, where="plan.json")


# -- lock files --------------------------------------------------------------------------------------------------------


def _attempt(path: str) -> str:
    """Whether a process of its own could lock the file with CI's way of opening it."""
    text = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    done = subprocess.run([sys.executable, "-c", text, path], capture_output=True, text=True)
    return "" if done.returncode == 0 else str(done.stderr.splitlines()[-1])


@pytest.mark.parametrize("released", [True, False])
def test_an_inherited_lock_outlives_its_taker_until_it_is_released(gpu_host: GpuHost, released: bool) -> None:
    descriptor = gpu_locks.try_lock(gpu_host.lock(0))
    assert descriptor is not None
    assert gpu_locks.try_lock(gpu_host.lock(0)) is None
    child = subprocess.Popen(["sleep", "300"], pass_fds=[descriptor])
    try:
        gpu_locks.release(descriptor) if released else os.close(descriptor)  # as for an agent that is killed
        assert _attempt(gpu_host.lock(0)).partition(":")[0] == ("" if released else "BlockingIOError")
    finally:
        child.kill()
        child.wait()


def test_a_new_lock_file_is_every_users_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        gpu_locks.create_missing([str(tmp_path / "new" / "lock")])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "lock").stat().st_mode) == 0o666


def test_what_is_no_file_is_refused_and_one_that_may_not_be_read_names_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("fifo", "dir", "link"):
        with pytest.raises(ResourcesUnavailable, match=name):
            gpu_locks.try_lock(str(tmp_path / name))
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "gpu 0").touch()
    monkeypatch.setattr(os, "open", lambda path, *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    path = str(tmp_path / "gpu 0")
    said = f"lock file {path}: Permission denied; run once as root: chmod 666 {shlex.quote(path)}"
    with pytest.raises(ResourcesUnavailable, match=f"^{re.escape(said)}$"):
        gpu_locks.try_lock(path)


PROTECTED = {
    "/dev/shm, a person": (0o41777, 0, 1000, True),
    "/dev/shm, root": (0o41777, 0, 0, False),
    "one's own directory": (0o41777, 1000, 1000, False),
    "of a group": (0o41770, 0, 1000, False),
}


@pytest.mark.parametrize(("mode", "owner", "user", "harm"), PROTECTED.values(), ids=PROTECTED)
def test_a_person_makes_no_file_that_would_lock_root_out(mode: int, owner: int, user: int, harm: bool) -> None:
    directory = os.stat_result((mode, 1, 1, 1, owner, 0, 0, 0, 0, 0))
    assert gpu_locks.blocks_other_users(directory, user) is harm


def test_missing_files_that_only_root_may_make_are_named_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_locks, "blocks_other_users", lambda *_: True)
    paths = [str(tmp_path / name) for name in ("a b", "c")]
    named = shlex.join(paths)
    with pytest.raises(ResourcesUnavailable, match=re.escape(f"run once as root: touch {named} && chmod 666 {named}")):
        gpu_locks.create_missing(paths)
    assert not list(tmp_path.iterdir())
    Path(paths[0]).touch()
    assert gpu_locks.try_lock(paths[0]) is not None  # one that exists harms no user
    assert gpu_locks.try_lock(paths[1], own=True) is not None  # one that is never opened with O_CREAT neither


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


def test_exclusive_flocks_are_read_from_proc_locks() -> None:
    assert gpu_locks.parse_locks(PROC_LOCKS) == {(0, 0x1B, 8): 21234, (0, 0x1B, 9): 0}


def test_holders_are_found_by_file(gpu_host: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = gpu_host.hold(0, 2)
    gpu_host.hold(1, shared=True)
    assert gpu_locks.try_lock(gpu_host.lock(3)) is not None, "our own are left out"
    paths = {gpu: gpu_host.lock(gpu) for gpu in range(5)}
    assert gpu_locks.holders(paths) == {0: holder.pid, 2: holder.pid}
    monkeypatch.setattr(gpu_locks, "LOCKS", "/no/such/file")
    assert gpu_locks.holders(paths) == {}
    assert [gpu_locks.is_held(paths[gpu]) for gpu in (0, 1, 2, 4)] == [True, False, True, False]


def _plan(path: Path, id: str) -> str:
    path.mkdir(parents=True)
    (path / "plan.json").write_text(json.dumps({"id": id}))
    return str(path)


def test_a_process_of_a_run_is_told_by_its_mark(gpu_host: GpuHost, tmp_path: Path) -> None:
    run = _plan(tmp_path / "20260102-030405-ckpt-ab12" / "03", "20260102-030405-ckpt.03")
    holder, gone = gpu_host.hold(0, CI_TASKS_RUN_DIR=run), gpu_host.hold(1, CI_TASKS_RUN_DIR="/no/such/batch/03")
    assert gpu_locks.run_dir_of(holder.pid) == run
    assert gpu_locks.describe_process(holder.pid) == "run 20260102-030405-ckpt-ab12.03"
    assert gpu_locks.describe_process(gone.pid) == "run batch.03"


def test_an_agent_is_recognized_by_its_working_directory(gpu_host: GpuHost, tmp_path: Path) -> None:
    run = _plan(tmp_path / "batch" / "01", "batch.01")
    agent, other = (gpu_host.start(["sh", "-c", f"cd {shlex.quote(run)} && echo && exec sleep 300"]) for _ in range(2))
    (tmp_path / "batch" / "01" / "status.json").write_text(json.dumps({"pid": agent.pid}))
    assert agent.stdout and other.stdout and agent.stdout.readline() == other.stdout.readline()
    assert (gpu_locks.run_dir_of(agent.pid), gpu_locks.run_dir_of(other.pid)) == (run, None)


def test_any_other_process_is_its_command_line_in_one_line_with_secrets_hidden(gpu_host: GpuHost) -> None:
    process = gpu_host.start(["sh", "-c", "echo; read x", "A_TOKEN=verysecret", "two\nlines", "é"])
    assert process.stdout and process.stdout.readline()
    said = f"pid {process.pid} of {ME} (sh -c 'echo; read x' 'A_TOKEN=***' 'two?lines' 'é')"
    assert gpu_locks.describe_process(process.pid) == said
    long = gpu_locks.describe_process(gpu_host.hold(0).pid)
    assert re.fullmatch(rf"pid \d+ of {ME} \(.{{59}}…\)", long)
    for pid in (0, -1, 2**22 + 1):
        assert (gpu_locks.run_dir_of(pid), gpu_locks.describe_process(pid)) == (None, "an unknown process")


NUMBERS = [([5], "GPU 5"), ([0, 1, 2, 3], "GPUs 0-3"), ([7, 0, 2, 5, 6], "GPUs 0, 2, 5-7"), ([1, 2], "GPUs 1-2")]


def test_gpus_are_named_shortly() -> None:
    assert [(gpus, gpu_locks.numbered("GPU", gpus)) for gpus, _ in NUMBERS] == NUMBERS
