"""The coverage of a workflow's rows: labels, tests and rows, and how two of them differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.features.coverage.coverage import (
    CheckoutCoverage,
    RowCoverage,
    checkout_coverage,
    coverage_report,
    diff_report,
    difference,
    row_coverage,
)
from ci_tasks.features.recorder.record import LaunchRecorder
from ci_tasks.features.recorder.syntax import Recording
from ci_tasks.features.suites.slime_helpers import HELPERS
from ci_tasks.workflow.model import Row
from tests.parts.golden import Golden

whole = (kept := Golden(Path(__file__).parent / "coverage.json")).fixture()
checkout_coverage = kept.of(checkout_coverage)
coverage_report = kept.of(coverage_report)
diff_report = kept.of(diff_report)

TRAIN = """
import slime.utils.external_utils.command_utils as U
MODEL_NAME = "Some-1B"
U.execute_train("--ci-test --colocate --advantage-estimator ppo ARGUMENTS", 8, None)
"""
FILES = {
    "tests/test_train.py": TRAIN,
    "tests/test_unit.py": "import pytest\ndef test_x(): ...\nif __name__ == '__main__':\n    pytest.main([__file__])\n",
    "tests/test_idle.py": "def test_x(): ...\n",
}


def row(label: str, test: str, args: str = "", gpus: int = 8) -> Row:
    name = test.removeprefix("test_").removesuffix(".py") + (f"[{args.lstrip('-')}]" if args else "")
    image = "slime:latest" if gpus else None
    return Row(
        *(label, f"job-{label}", f"run-ci-{label}", name, f"tests/{test}", args, gpus, image, {}, "self-hosted", None)
    )


ROWS = [
    row("a", "test_train.py"),
    row("a", "test_train.py", "--async-save"),
    row("cpu", "test_unit.py", gpus=0),
    row("cpu", "test_idle.py", gpus=0),
    row("cpu", "test_gone.py", gpus=0),
    row("again", "test_train.py"),
    row("again", "test_train.py", "--async-save"),
    replace(row("changed", "x"), test=None, dynamic="needs.detect.outputs.matrix"),
    replace(row("detect", "x"), test=None),
]


def read(files: Mapping[str, str], test: str, args: Sequence[str]) -> Recording:
    texts = {name: text.replace("ARGUMENTS", " ".join(args)) for name, text in files.items()}
    return LaunchRecorder(HELPERS, texts.get).record(test)


def covered(
    rows: list[Row],
    files: dict[str, str] = FILES,
    name: str = "now",
    commands: Mapping[str, Sequence[str]] | None = None,
) -> CheckoutCoverage:
    return checkout_coverage(
        name, "w.yml", rows, files.get, lambda test, args, env: read(files, test, args), commands or {}
    )


def test_rows_of_one_test_are_one_entry_with_a_mode_each() -> None:
    coverage = covered(ROWS)
    (entry,) = coverage.labels[0].tests
    assert "is run 2 ways:\n\n- `no arguments`\n- `--async-save`: async save\n" in coverage_report(coverage)
    assert entry.coverage == ("Some-1B dense", "PPO", "colocated", "offload/onload", "async save")


def test_a_difference_lists_what_is_added_and_lost() -> None:
    before = covered(ROWS, name="before")
    source = TRAIN.replace("ppo", "gspo")
    rows = [replace(base, gpus=4) for base in ROWS if base.args == "" and base.label == "a"] + [
        row("a", "test_unit.py")
    ]
    changed = difference(before, covered(rows, {**FILES, "tests/test_train.py": source}))
    assert changed.added == ("a: unit",)
    assert {"PPO", "async save"} <= {*changed.lost} and changed.gained == ("GSPO",)
    assert "The same coverage." in diff_report(difference(before, before))


def test_a_cpu_test_says_what_it_is_about() -> None:
    cpu = covered(ROWS).labels[1]
    assert [test.coverage for test in cpu.tests] == [
        ("unit: x (1 test)",),
        ("idle (runs nothing: no `__main__`)",),
        ("not seen: the checkout has no such file",),
    ]


def test_a_job_whose_rows_name_no_test_shows_what_its_steps_run() -> None:
    coverage = covered(ROWS, commands={"job-detect": ("pytest -s tests/cpu",), "job-a": ("never",)})
    assert {each.label: each.commands for each in coverage.labels if each.commands} == {
        "detect": ("pytest -s tests/cpu",)
    }
    text = coverage_report(coverage)
    assert "| detect | `run-ci-detect` | by its steps | by its steps |" in text and "- `pytest -s tests/cpu`" in text


MODEL_SCRIPTS = {
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
    return row_coverage(row, recording, MODEL_SCRIPTS.get)


@pytest.fixture
def trained(record: Callable[..., Recording]) -> Cover:
    """What a test covers whose one training is a literal call: read, so that many cases take no time."""

    def cover(flags: str, model: str = "small") -> RowCoverage:
        source = f"{HEAD}U.execute_train('--ci-test {flags}', 8, {model!r})\n"
        return row_facts(record(source, static=True))

    return cover


KINDS = [
    # Flags speak before the model's script, the script before the expert-parallel size, and the name comes last.
    ("--num-experts 8", "small", "MoE"),
    ("", "big", "MLA MoE"),
    ("--expert-model-parallel-size 8", "small", "MoE"),
    ("", "small-moe-by-name", "dense"),
    ("--expert-model-parallel-size 1", "small", "dense"),
]


@pytest.mark.parametrize(("flags", "model", "kind"), KINDS)
def test_dense_or_moe_is_read_from_flags_before_names(trained: Cover, flags: str, model: str, kind: str) -> None:
    assert trained(flags, model).covers[0] == f"Some-1B {kind}"


@pytest.mark.parametrize(("checkpoint", "model"), [("'/models/Tiny-1B/'", "Tiny-1B dense"), ("U.find()", "GRPO")])
def test_an_unnamed_model_is_its_checkpoint(record: Callable[..., Recording], checkpoint: str, model: str) -> None:
    source = HEAD.replace("MODEL_NAME", "NAME")
    source += f"U.execute_train('--ci-test --advantage-estimator grpo --hf-checkpoint ' + {checkpoint}, 8, 'small')\n"
    assert row_facts(record(source, static=True)).covers[0] == model


FEATURES = {
    "--colocate": ["colocated", "offload/onload"],
    "--colocate --no-offload-rollout": ["colocated"],
    # A layout is the sizes above one, and of a flag that is given twice the last counts.
    "--tensor-model-parallel-size 2 --context-parallel-size 2": ["TP2 + CP2"],
    "--pipeline-model-parallel-size 4 --expert-model-parallel-size 8": ["PP4 + EP8"],
    "--tensor-model-parallel-size 2 --tensor-model-parallel-size 1 --colocate": ["colocated", "offload/onload"],
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


def test_the_words_of_a_test_do_not_end_a_cell_of_markdown() -> None:
    for words, cell in (("Some|<b>1B</b>*", "Some\\|&lt;b>1B&lt;/b>\\*"), ("`<b>` <i>", "`<b>` &lt;i>")):
        files = {**FILES, "tests/test_train.py": TRAIN.replace("Some-1B", words)}
        text = coverage_report(covered([row("a", "test_train.py")], files))
        assert f"| {cell} dense, PPO, colocated, offload/onload |" in text
