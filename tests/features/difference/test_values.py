"""Which logs are equal, bit for bit, and a run against golden values in Megatron-LM's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.difference import values
from ci_tasks.features.difference.values import ValueDifference, Values, compare_values, text
from tests.parts.cases import named

LOG = """step 0: {'train/loss': 1.5, 'train/grad_norm': 0.25}
[rank3]: step 0: {'train/loss': 2.0}
a word of nobody
step 1: {'train/loss': 1.25, 'train/grad_norm': nan}
HASH  ckpt/iter_1/weights.safetensors
ci-tasks-verl: file: resume: OTHER actor/model.pt
""".replace("HASH", "a" * 64).replace("OTHER", "b" * 64)
UNLIKE = "new differs from old (7 values, bit for bit)"
EXACT: list[tuple[str, str, str, list[str]]] = [
    ("equal", LOG, LOG, ["new equals old (7 values, bit for bit)"]),
    ("-0 is not 0", LOG.replace("1.5", "0.0"), LOG.replace("1.5", "-0.0"),
     [UNLIKE, "  train/loss at step 0: 0.0 → -0.0"]),
    ("the last digit", LOG, LOG.replace("1.25", "1.2500000000000002"),
     [UNLIKE, "  train/loss at step 1: 1.25 → 1.2500000000000002"]),
    ("a rank", LOG, LOG.replace("2.0}", "2.5}"), [UNLIKE, "  train/loss (rank 3) at step 0: 2.0 → 2.5"]),
    ("a checkpoint", LOG, LOG.replace("b" * 64, "c" * 64), [UNLIKE, "  checkpoint file actor/model.pt"]),
    ("nothing in common", "hello\n", "", ["new is not shown to equal old (0 values, bit for bit)"]),
    ("one ended earlier", LOG, LOG.replace(", 'train/grad_norm': nan", ""),
     ["new differs from old (6 values, bit for bit)", "  missing in one of them: train/grad_norm: 1 of 2 values"]),
]  # fmt: skip


def read(log: str) -> Values:
    return values.read_values(log.encode().splitlines(keepends=True))


@named(("old", "new", "lines"), EXACT)
def test_two_logs_are_equal_only_if_all_that_they_print_is(old: str, new: str, lines: list[str]) -> None:
    compared = compare_values("old", read(old), "new", read(new))
    assert text(compared) == lines
    assert (values.EXIT_CODES[compared.outcome] == 0) == (old == new and "step" in old)


def test_no_step_of_a_long_training_is_left_out_and_the_first_difference_comes_first() -> None:
    """A chart leaves out what is neither low nor high among its neighbours."""
    steps = [f"step {step}: {{'train/loss': {step % 4}, 'train/kl': 1}}\n" for step in range(3000)]
    other = [
        *steps[:2001],
        "step 2001: {'train/loss': 1.5, 'train/kl': 1}\n",
        "step 2002: {'train/loss': 2, 'train/kl': 2}\n",
    ]
    compared = compare_values("old", read("".join(steps)), "new", read("".join([*other, *steps[2003:]])))
    assert compared.differences == (
        ValueDifference("train/loss", "2001", 1.0, 1.5),
        ValueDifference("train/kl", "2002", 1.0, 2.0),
    )


TRAINED = """step 2: {'train/loss': 1.5, 'train/grad_norm': 0.0}
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
    file, golden = tmp_path / "golden.json", values.of_lowest_rank(read(TRAINED))
    values.write_golden(file, golden)
    assert json.loads(file.read_text()) == GOLDEN
    assert values.read_golden(file) == golden


SHORT = "run is not shown to equal golden.json (6 values, tolerance 0.1)"
CASES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("all of it", GOLDEN, "shown", ["run equals golden.json (6 values, tolerance 0.1)"]),
    ("beyond it", with_value("train/loss", "8", 1.2), "contradicted",
     ["run differs from golden.json (6 values, tolerance 0.1)", "  train/loss at step 8: 1.2 → 1.0"]),
    ("a tolerance of nothing is nothing", with_value("train/loss", "8", 0), "contradicted", []),
    ("near 0", with_value("train/grad_norm", "2", 1e-9), "contradicted", []),
    ("a step that the run did not reach", with_value("train/loss", "10", 1.0), "not seen",
     [SHORT, "  missing in the run: train/loss: 1 of 4 values"]),
    ("a metric that the run does not have", {**GOLDEN, "lm loss": GOLDEN["train/loss"]}, "not seen",
     [SHORT, "  missing in the run: lm loss: 3 of 3 values"]),
    ("fewer steps and metrics than the run", {"train/loss": with_value("train/loss", "2", 1.5)["train/loss"]}, "shown",
     ["run equals golden.json (3 values, tolerance 0.1)"]),
]  # fmt: skip


@named(("golden", "outcome", "lines"), CASES)
def test_a_run_matches_if_each_value_of_the_file_is_seen_and_close(
    golden: dict[str, Any], outcome: str, lines: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "golden.json"
    file.write_text(json.dumps(golden))
    seen = values.of_lowest_rank(read(TRAINED))
    compared = compare_values("golden.json", values.read_golden(file), "run", seen, 0.1)
    assert compared.outcome == outcome
    assert not lines or text(compared) == lines


NO_GOLDEN = [
    (None, "No such file or directory"),
    ("{", "no JSON"),
    ("{}", "it has no values per step"),
    (json.dumps(with_value("train/loss", "x", 1.0)), "invalid literal for int"),
]


@pytest.mark.parametrize(("content", "why"), NO_GOLDEN)
def test_a_file_without_golden_values_is_named_with_the_reason(tmp_path: Path, content: str | None, why: str) -> None:
    file = tmp_path / "golden.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError) as refused:
        values.read_golden(file)
    assert str(refused.value).startswith(f"no golden values in {file}: ") and "Errno" not in str(refused.value)
    assert why in str(refused.value) or why == "no JSON"
