"""What frameworks say in runs that pass too is known without a passing run; what a failure says is not among it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks import resources
from ci_tasks.features.failures.triage import log_prefixes, noise_templates
from ci_tasks.features.failures.triage.line_template import masked
from ci_tasks.features.failures.triage.noise_templates import is_noise

CASES = sorted((Path(__file__).parent / "cases").glob("*.log"))
_LINES = 1500


def _noise(line: str) -> bool:
    return is_noise(masked(log_prefixes.read(1, line.encode()).text))


HARMLESS = [
    (
        "DeepSpeed's list of operators",
        " [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.",
    ),
    (
        "DeepSpeed without a hostfile",
        "[2031-05-06 07:08:09,100] [WARNING] [runner.py:7:fetch_hostfile] Unable to find hostfile, "
        "will proceed with training with local resources only.",
    ),
    (
        "a process group that nobody destroyed",
        "[rank3]:[W506 07:08:09.123456789 ProcessGroupNCCL.cpp:99] Warning: WARNING: destroy_process_group() was not "
        "called before program exit, which can leak resources. For more info, please see https://example.org/x "
        "(function operator())",
    ),
    (
        "Python's tracker of semaphores",
        "/opt/env/lib/python3.12/multiprocessing/resource_tracker.py:4: UserWarning: resource_tracker: There appear to "
        "be 17 leaked semaphore objects to clean up at shutdown",
    ),
    (
        "vLLM without FlashInfer",
        "(Worker_TP1 pid=31) WARNING 05-06 07:08:09 [topk_topp_sampler.py:1] FlashInfer is not available. Falling "
        "back to the PyTorch-native implementation of top-p & top-k sampling. For the best performance, please install "
        "FlashInfer.",
    ),
    ("a server that ends in order", "(APIServer pid=31) INFO:     Application shutdown complete."),
]


@pytest.mark.parametrize("line", [row[1] for row in HARMLESS], ids=[row[0] for row in HARMLESS])
def test_a_frameworks_harmless_line_is_noise_with_any_number_path_and_rank(line: str) -> None:
    assert _noise(line)


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


@pytest.mark.parametrize("line", TELLING)
def test_a_line_that_says_why_a_job_failed_is_none(line: str) -> None:
    assert not _noise(line)


@pytest.mark.parametrize("case", CASES, ids=[case.stem for case in CASES])
def test_no_line_that_a_case_calls_its_reason_is_noise(case: Path) -> None:
    rows = case.read_text(encoding="utf-8").splitlines()
    roots = [row.removeprefix("#: line ") for row in rows if row.startswith("#: line ")]
    assert not [row for row in rows if not row.startswith("#: ") and any(root in row for root in roots) and _noise(row)]


def test_the_table_is_sorted_without_repetitions_and_short() -> None:
    header, _, table = resources.text(noise_templates.FILE).partition("\n\n")
    templates = table.splitlines()
    assert header.startswith("# ") and templates == sorted(set(templates))
    assert 100 < len(templates) < _LINES


def test_the_table_has_templates_as_they_are_made_today() -> None:
    _, _, table = resources.text(noise_templates.FILE).partition("\n\n")
    assert not [template for template in table.splitlines() if masked(template) != template]
