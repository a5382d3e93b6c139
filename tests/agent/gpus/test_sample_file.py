"""gpu.csv stays small however long a run takes, and is the agent's at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent.gpus import sample_file
from ci_tasks.agent.gpus.sample_file import SampleFile, merged, read_gpu_samples, rows_of, thinned
from ci_tasks.agent.records import GpuProcessSample, GpuSample

ONE = GpuSample(100.0, 0, "GPU-a", used=10, utilization=20.0, watts=300.0, celsius=50, sm_mhz=1900, uncorrected=0)


def test_merged_lines_have_peaks_the_mean_utilization_and_the_seconds_of_throttling() -> None:
    others = replace(
        ONE, t=101.0, used=90, utilization=60.0, watts=700.0, sm_mhz=900, uncorrected=2, slowed={"power cap": 1.0}
    )
    last = replace(others, t=102.0, used=20, watts=100.0, processes=(GpuProcessSample(7, 5),))
    peaks = replace(others, t=100.0, seconds=3.0, utilization=46.7, slowed={"power cap": 2.0})
    assert merged([ONE, others, last]) == replace(peaks, processes=(GpuProcessSample(7, 5),))


def test_old_lines_are_merged_and_new_ones_the_first_one_and_events_stay() -> None:
    samples = [replace(ONE, t=100.0 + at) for at in range(10)]
    kept = thinned([*samples[:2], GpuSample(101.5, 0, "GPU-a", xid=79), *samples[2:]], 4.0, 108.0)
    times = [(100.0, 1), (101.0, 3), (101.5, 1), (104.0, 4), (108.0, 1), (109.0, 1)]
    assert [(sample.t, sample.seconds) for sample in kept] == times


def test_a_long_run_has_a_bounded_file_with_its_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_file, "MAX_ROWS", 60)
    monkeypatch.setattr(sample_file, "RECENT_SECONDS", 10.0)
    path, most = tmp_path / "gpu.csv", 0
    file = SampleFile(str(path))
    for at in range(2000):
        for uuid in ("GPU-a", "GPU-b"):
            file.add(replace(ONE, t=1000.0 + at, uuid=uuid, used=5000 if (at, uuid) == (700, "GPU-b") else 10))
        most = max(most, len(path.read_text().splitlines()) if at % 50 == 0 else 0)
    samples = read_gpu_samples(path.read_text())
    assert most <= 61, "and a header"
    assert max(sample.used or 0 for sample in samples if sample.uuid == "GPU-b") == 5000
    assert sum(sample.seconds for sample in samples) == pytest.approx(4000)  # no second is lost
    assert [sample.t for sample in samples if sample.uuid == "GPU-a"][-5:] == [2995.0 + at for at in range(5)]


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


def test_without_a_measurement_there_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    file = SampleFile(str(path))
    file.add(GpuSample(101.0, problem="nvidia-smi ended with exit code 9: no devices"))
    assert not path.exists()
    file.add(ONE)
    file.add(GpuSample(101.0, ended=True))
    assert read_gpu_samples(path.read_text()) == [ONE, GpuSample(101.0, ended=True)]
