"""The coverage of a workflow's rows: labels, tests and rows, and how two of them differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ci_tasks.features.coverage.labels import CheckoutCoverage, checkout_coverage, difference
from ci_tasks.features.coverage.report import coverage_report, diff_report
from ci_tasks.features.recorder.record import LaunchRecorder
from ci_tasks.features.recorder.records import Recording
from ci_tasks.features.suites.slime_helpers import HELPERS
from ci_tasks.workflow.model import Row

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
    first, _, _, changed = covered(ROWS).labels
    (entry,) = first.tests
    assert entry.modes == ["no arguments", "`--async-save`: async save"]
    assert entry.coverage == ("Some-1B dense", "PPO", "colocated", "offload/onload", "async save")
    assert changed.dynamic == "needs.detect.outputs.matrix"


def test_a_difference_lists_what_is_added_and_lost() -> None:
    before = covered(ROWS, name="before")
    source = TRAIN.replace("ppo", "gspo")
    rows = [replace(base, gpus=4) for base in ROWS if base.args == "" and base.label == "a"] + [
        row("a", "test_unit.py")
    ]
    changed = difference(before, covered(rows, {**FILES, "tests/test_train.py": source}))
    assert changed.added == ("a: unit",)
    assert "a: train[async-save]" in changed.removed
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
    assert "| detect | `run-ci-detect` | by its steps | by its steps |" in text
    assert "- `pytest -s tests/cpu`" in text
