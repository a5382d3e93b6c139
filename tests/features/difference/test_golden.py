"""A run against golden values in Megatron-LM's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.features.difference.golden import compare_with_golden, golden_of, read_golden, text, write_golden
from ci_tasks.features.difference.logged import read_results

LOG = """step 2: {'train/loss': 1.5, 'train/grad_norm': 0.0}
[rank3]: step 2: {'train/loss': 9.0}
step 6: {'train/loss': 1.25, 'train/grad_norm': nan}
step 8: {'train/loss': 1.0}
step 2: {'train/loss': 0.5}
"""
GOLDEN: dict[str, Any] = {
    "train/grad_norm": {"start_step": 2, "end_step": 6, "step_interval": 4, "values": {"2": 0.0, "6": "nan"}},
    "train/loss": {"start_step": 2, "end_step": 8, "step_interval": 2, "values": {"2": 1.5, "6": 1.25, "8": 1.0}},
    "train/loss (training 2)": {"start_step": 2, "end_step": 2, "step_interval": 1, "values": {"2": 0.5}},
}


def with_value(name: str, step: str, value: object) -> dict[str, Any]:
    return {**GOLDEN, name: {**GOLDEN[name], "values": {**GOLDEN[name]["values"], step: value}}}


def test_what_a_run_gave_is_written_in_the_form_that_is_read(tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    golden = golden_of(read_results(LOG.encode().splitlines(keepends=True)))
    write_golden(file, golden)
    assert json.loads(file.read_text()) == GOLDEN
    assert read_golden(file) == golden


CASES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("all of it", GOLDEN, "shown", ["run matches golden.json (6 values, tolerance 0.1)"]),
    (
        "beyond it",
        with_value("train/loss", "8", 1.2),
        "contradicted",
        ["run differs from golden.json (6 values, tolerance 0.1)",
         "  train/loss at step 8: 1.2 in the file, 1.0 in the run"],
    ),
    ("a tolerance of nothing is nothing", with_value("train/loss", "8", 0), "contradicted", []),
    ("near 0", with_value("train/grad_norm", "2", 1e-9), "contradicted", []),
    (
        "a step that the run did not reach",
        with_value("train/loss", "10", 1.0),
        "not seen",
        ["run is not shown to match golden.json (6 values, tolerance 0.1)",
         "  not seen in the run: train/loss: 1 of 4 steps"],
    ),
    (
        "a metric that the run does not have",
        {**GOLDEN, "lm loss": GOLDEN["train/loss"]},
        "not seen",
        ["run is not shown to match golden.json (6 values, tolerance 0.1)",
         "  not seen in the run: lm loss: 3 of 3 steps"],
    ),
    ("fewer steps and metrics than the run", {"train/loss": with_value("train/loss", "2", 1.5)["train/loss"]}, "shown",
     ["run matches golden.json (3 values, tolerance 0.1)"]),
]  # fmt: skip


@pytest.mark.parametrize(("golden", "outcome", "lines"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_run_matches_if_each_value_of_the_file_is_seen_and_close(
    golden: dict[str, Any], outcome: str, lines: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "golden.json"
    file.write_text(json.dumps(golden))
    seen = golden_of(read_results(LOG.encode().splitlines(keepends=True)))
    compared = compare_with_golden("run", seen, "golden.json", read_golden(file), 0.1)
    assert compared.outcome == outcome
    assert not lines or text(compared) == lines
