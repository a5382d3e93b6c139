"""GPUs are sampled while a job runs: real agents with an nvidia-smi that answers, hangs or fails; and gpu.csv
stays small however long a run takes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.agent import nvidia_smi, processes
from ci_tasks.agent.docker_argv import ContainerRules
from ci_tasks.agent.nvidia_smi import GpuSampler, merged, process_owner, read_gpu_samples, rows_of
from ci_tasks.agent.records import GpuProcessSample, GpuSample, Plan, QueryAnswer
from ci_tasks.agent.run_directory import RunDir

if TYPE_CHECKING:
    from tests.agent.conftest import GpuHost, Run

Until = Callable[..., Any]
WAIT = 'while [ ! -e "$CI_TASKS_RUN_DIR/go" ]; do sleep 0.02; done'

HANGS = "#!/bin/sh\nkill -STOP $$\n"


def _samples(run: Run) -> list[GpuSample]:
    path = Path(run.paths.gpu_samples)
    return read_gpu_samples(path.read_text()) if path.exists() else []


def _start(run: Run, host: GpuHost, script: str = WAIT) -> Run:
    run.plan.update(gpus=1, image=None)
    return run.start(script, PATH=os.environ["PATH"])


def _smi_processes(host: GpuHost) -> list[int]:
    shown = subprocess.run(["ps", "-wweo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    lines = (line.split(None, 1) for line in shown.splitlines() if str(host.bin / "nvidia-smi") in line)
    return [int(pid) for pid, *_ in lines]


def _go(run: Run) -> None:
    (run.path / "go").touch()


def test_the_gpus_of_a_job_are_sampled_until_its_end(run: Run, gpu_host: GpuHost, until: Until) -> None:
    gpu_host.smi(61440, apps="GPU-0, 1, 2048, /sbin/init\n")
    _start(run, gpu_host)
    until(lambda: any(sample.processes for sample in _samples(run)))
    _go(run)
    run.ended()
    samples = _samples(run)
    first = samples[0]
    values = (first.gpu, first.uuid, first.used, first.utilization, first.watts, first.slowed)
    assert values == (0, "GPU-0", 61440, 97, 651.2, {"power cap": 2.0})
    assert samples[-1].ended
    process = next(sample.processes[0] for sample in samples if sample.processes)
    assert (process.pid, process.memory, process.owner, process.name) == (1, 2048, "other", "init")
    assert not _smi_processes(gpu_host)


def test_an_nvidia_smi_that_hangs_holds_up_no_end(run: Run, gpu_host: GpuHost, until: Until) -> None:
    gpu_host.smi_says(HANGS)
    _start(run, gpu_host)
    until(lambda: _smi_processes(gpu_host))
    _go(run)
    assert run.ended().exit_code == 0
    assert not _smi_processes(gpu_host)


def test_an_nvidia_smi_that_fails_is_on_record(run: Run, gpu_host: GpuHost, until: Until) -> None:
    gpu_host.smi_says("#!/bin/sh\necho GPU is lost; exit 15")
    _start(run, gpu_host)
    until(lambda: any("lost" in sample.problem for sample in _samples(run)))
    _go(run)
    assert run.ended().exit_code == 0
    assert [one.problem for one in _samples(run) if "lost" in one.problem] == ["nvidia-smi failed: GPU is lost"]


def test_a_run_without_gpus_asks_nothing(run: Run, gpu_host: GpuHost) -> None:
    gpu_host.smi(4)
    run.start("true", PATH=os.environ["PATH"]).ended()
    assert not (gpu_host.path / "nvidia" / "asked").exists()
    assert not Path(run.paths.gpu_samples).exists()


def test_processes_below_the_agent_are_the_runs_and_older_ones_are_not(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "30"]) as child:
        assert process_owner(str(tmp_path), Plan(), (), child.pid) == "run"
        child.kill()
    assert process_owner(str(tmp_path), Plan(), (), 1) == "other"
    assert process_owner(str(tmp_path), Plan(), (), 2**22 + 1) == "unknown"  # it is not visible here


def test_a_process_with_the_runs_mark_is_the_runs(tmp_path: Path, until: Until) -> None:
    script = 'setsid env CI_TASKS_RUN_DIR="$0" sleep 30 > /dev/null 2>&1 & echo $!'
    pid = int(subprocess.check_output(["sh", "-c", script, os.path.realpath(tmp_path)]))
    try:
        assert not processes.is_below(pid, os.getpid())
        until(lambda: process_owner(str(tmp_path), Plan(), (), pid) == "run")
    finally:
        os.kill(pid, signal.SIGKILL)


# Of a GPU before the run and in it, of one that the run does not have, without a time.
XID = "1970-01-01T00:03:%d+00:00 NVRM: Xid (PCI:0000:%s:00): %d, pid=1\n"
XIDS = XID % (18, "1b", 48) + XID % (19, "1b", 79) + XID % (20, "43", 31) + "[12.3] NVRM: Xid (0000:1b:00): 13"
SAMPLE = "1, GPU-b, 4, 9, 00000000:1B:00.0" + ", " * 7


def test_what_happened_to_gpus_while_run_waited_is_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], dict[str, list[str]]()

    def ask(queries: dict[str, list[str]], _: float) -> dict[str, QueryAnswer]:
        asked.update(queries)
        return {name: QueryAnswer(1, XIDS if name == nvidia_smi.JOURNAL else "") for name in queries}

    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(shutil, "which", str)
    monkeypatch.setattr(nvidia_smi, "run_program", lambda *_: QueryAnswer(1, SAMPLE))
    monkeypatch.setattr(nvidia_smi, "ask", ask)
    run = RunDir(str(tmp_path))
    sampler = GpuSampler(run, run, Plan(gpus=1), list, list)
    now[0] = 200.0
    sampler.start()
    sampler.close()
    assert asked[nvidia_smi.JOURNAL][-2:] == ["--since", "@200"]
    xid, end = GpuSample(199.0, 1, "GPU-b", xid=79), GpuSample(200.0, ended=True, kernel_log=True)
    assert read_gpu_samples((tmp_path / "gpu.csv").read_text())[2:] == [xid, end]


CONTAINER, OTHER = "a" * 64, "b" * 64
CGROUPS: dict[str, tuple[str, str]] = {
    "the run's container": (f"0::/system.slice/docker-{CONTAINER}.scope", "run"),
    "of an older docker": (f"12:memory:/docker/{CONTAINER}\n0::/", "run"),
    "another container": (f"0::/system.slice/docker-{OTHER}.scope", "unknown"),
    "not to be read": ("", "unknown"),
}


@pytest.mark.parametrize(("cgroups", "owner"), CGROUPS.values(), ids=CGROUPS)
def test_with_a_daemon_the_cgroup_tells_whose_a_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroups: str, owner: str
) -> None:
    monkeypatch.setattr(processes, "stat", lambda pid: processes.Stat("S", 0, 0, 0, "100"))
    monkeypatch.setattr(nvidia_smi, "content_of", lambda path: cgroups.encode())
    plan = Plan(container=ContainerRules(runtime="docker"))
    assert process_owner(str(tmp_path), plan, [CONTAINER], 1) == owner


ONE = GpuSample(100.0, 0, "GPU-a", used=10, utilization=20.0, watts=300.0, celsius=50, sm_mhz=1900, uncorrected=0)


def test_merged_lines_have_peaks_the_mean_utilization_and_the_seconds_of_throttling() -> None:
    others = replace(
        ONE, t=101.0, used=90, utilization=60.0, watts=700.0, sm_mhz=900, uncorrected=2, slowed={"power cap": 1.0}
    )
    last = replace(others, t=102.0, used=20, watts=100.0, processes=(GpuProcessSample(7, 5),))
    peaks = replace(others, t=100.0, seconds=3.0, utilization=46.7, slowed={"power cap": 2.0})
    assert merged([ONE, others, last]) == replace(peaks, processes=(GpuProcessSample(7, 5),))


def test_a_long_run_has_a_bounded_file_with_its_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_smi, "THINNED_SECONDS", 100.0)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    sampler = GpuSampler(RunDir(str(tmp_path)), RunDir(str(tmp_path)), Plan(), list, list)
    for at in range(2000):
        for uuid in ("GPU-a", "GPU-b"):
            sampler.add(replace(ONE, t=1000.0 + at, uuid=uuid, used=5000 if (at, uuid) == (700, "GPU-b") else 10))
    rows = read_gpu_samples((tmp_path / "gpu.csv").read_text())
    assert len(rows) < 2 * 500
    assert max(row.used or 0 for row in rows if row.uuid == "GPU-b") == 5000
    assert sum(row.seconds for row in rows) > 3960, "none is lost but the last ones, which wait"
    assert [row.t for row in rows if row.uuid == "GPU-a"][:30] == [1000.0 + at for at in range(30)]


def test_rows_are_read_as_they_were_written_and_others_are_left_out() -> None:
    samples = [
        replace(ONE, slowed={"thermal, by hardware": 1.0}, processes=(GpuProcessSample(7, 5, "run", 'a,"b"'),)),
        GpuSample(101.0, problem='it said "no",\nand é'),
        GpuSample(102.0, ended=True, kernel_log=True),
    ]
    text = rows_of(samples, header=True).decode()
    assert text.startswith("t,gpu,uuid,seconds,used,total,utilization,watts,")
    assert read_gpu_samples(text + 'x,0,GPU-a\n\n"[" ,,\0,\n103.0') == [*samples, GpuSample(103.0)]
    assert read_gpu_samples("") == []
