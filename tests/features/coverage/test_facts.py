"""What a row covers, from the source of its test and the row itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ci_tasks.features.coverage.labels import RowCoverage, row_coverage
from ci_tasks.features.recorder.records import Recording
from ci_tasks.workflow.model import Row

FILES = {
    "scripts/models/big.sh": "MODEL_ARGS=(\n  --num-layers 4\n  --num-experts 64\n  --multi-latent-attention\n)",
    "scripts/models/small-moe-by-name.sh": "MODEL_ARGS=(--num-layers 4\n --moe-router-dtype fp32)",
}
HEAD = """
import subprocess
import slime.utils.external_utils.command_utils as U
MODEL_NAME = "Some-1B"
"""


Cover = Callable[..., RowCoverage]


def row_facts(recording: Recording) -> RowCoverage:
    row = Row("a", "job-a", None, "x", "tests/test_x.py", "", 8, None, {}, "self-hosted", None)
    return row_coverage(row, recording, FILES.get)


@pytest.fixture
def trained(record: Callable[..., Recording]) -> Cover:
    """What a test covers whose one training is a literal call: read, so that many cases take no time."""

    def cover(flags: str, model: str = "small") -> RowCoverage:
        source = f"{HEAD}U.execute_train('--ci-test {flags}', 8, {model!r})\n"
        return row_facts(record(source, static=True))

    return cover


@pytest.mark.parametrize(
    ("flags", "layout"),
    [
        ("", "colocated"),
        ("--tensor-model-parallel-size 2 --context-parallel-size 2", "TP2 + CP2"),
        ("--pipeline-model-parallel-size 4 --expert-model-parallel-size 8", "PP4 + EP8"),
        ("--tensor-model-parallel-size 2 --tensor-model-parallel-size 1", "colocated"),  # the last one counts
    ],
)
def test_a_layout_is_the_sizes_above_one(trained: Cover, flags: str, layout: str) -> None:
    assert trained(f"--colocate {flags}").covers[2] == layout


@pytest.mark.parametrize(
    ("flags", "model", "kind"),
    [
        # Flags speak before the model's script, the script before the expert-parallel size, and the name comes last.
        ("--num-experts 8", "small", "MoE"),
        ("", "big", "MLA MoE"),
        ("--expert-model-parallel-size 8", "small", "MoE"),
        ("", "small-moe-by-name", "dense"),
        ("--expert-model-parallel-size 1", "small", "dense"),
    ],
)
def test_dense_or_moe_is_read_from_flags_before_names(trained: Cover, flags: str, model: str, kind: str) -> None:
    assert trained(flags, model).covers[0] == f"Some-1B {kind}"


FEATURES = {
    "--colocate": ["colocated", "offload/onload"],
    "--colocate --no-offload-rollout": ["colocated"],
    "--sglang-speculative-algorithm EAGLE": ["sglang speculative algorithm EAGLE"],
    "--sglang-enable-dp-attention --use-tis": ["dp attention", "tis"],
    "--hf-checkpoint /root/models/X-FP8": ["FP8 rollout"],
    "--custom-generate-function-path a.b.work": ["custom generate function work"],
    "--load /x --save /y": ["checkpoint load", "save"],
    "--prefill-num-servers 1 --sequence-parallel": ["prefill num servers"],
}


def test_flags_name_what_they_exercise(trained: Cover) -> None:
    assert {flags: list(trained(flags).covers[2:]) for flags in FEATURES} == FEATURES


def test_a_training_may_be_a_command_of_its_own(record: Callable[..., Recording]) -> None:
    body = 'subprocess.run(["python3", "train.py", *"--num-experts 8 --advantage-estimator gspo --ci-test".split()])\n'
    found = row_facts(record(HEAD + body))
    assert found.covers == ("Some-1B MoE", "GSPO")


def test_a_file_of_tests_counts_them_and_one_without_an_entry_runs_nothing(record: Callable[..., Recording]) -> None:
    tests = '"""Tests of the thing."""\nimport pytest\ndef test_a(): ...\ndef test_b(): ...\n'
    run = row_facts(record(f"{tests}if __name__ == '__main__':\n    pytest.main([__file__])\n"))
    assert run.covers == ("Tests of the thing (2 tests)",)
    assert row_facts(record(tests)).covers == ("Tests of the thing (runs nothing: no `__main__`)",)
