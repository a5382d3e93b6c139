"""What frameworks say in runs that pass too is known without a passing run; what a failure says is not among it."""

from __future__ import annotations

from pathlib import Path

from ci_tasks.logs.triage import log_prefixes
from ci_tasks.logs.triage.features import is_noise, masked

CASES = sorted((Path(__file__).parent / "cases").glob("*.log"))


def _noise(line: str) -> bool:
    return is_noise(masked(log_prefixes.read(1, line.encode()).text))


HARMLESS = [
    " [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.",
    "[2031-05-06 07:08:09,100] [WARNING] [runner.py:7:fetch_hostfile] Unable to find hostfile, "
    "will proceed with training with local resources only.",
    "/opt/env/lib/python3.12/multiprocessing/resource_tracker.py:4: UserWarning: resource_tracker: There appear to "
    "be 17 leaked semaphore objects to clean up at shutdown",
    "(APIServer pid=31) INFO:     Application shutdown complete.",
]


def test_a_frameworks_line_is_noise_with_any_number_path_and_rank_and_a_reason_is_none() -> None:
    assert [line for line in HARMLESS if not _noise(line)] == []
    assert [line for line in TELLING if _noise(line)] == []


TELLING = [
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
    "Traceback (most recent call last):",
    "ModuleNotFoundError: No module named 'flash_attn'",
    "slurmstepd: error: *** JOB 77 ON node1 CANCELLED AT 2031-05-06T07:08:09 DUE TO TIME LIMIT ***",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    "[rank0]:[E506 07:08:09.1 ProcessGroupNCCL.cpp:9] Watchdog caught collective operation timeout",
    "",
]


def test_no_line_that_a_case_calls_its_reason_is_noise() -> None:
    for case in CASES:
        rows = case.read_text(encoding="utf-8").splitlines()
        roots = [row.removeprefix("#: line ") for row in rows if row.startswith("#: line ")]
        reasons = [row for row in rows if not row.startswith("#: ") and any(root in row for root in roots)]
        assert not [row for row in reasons if _noise(row)], case.stem
