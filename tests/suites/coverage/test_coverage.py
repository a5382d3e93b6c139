"""The map of a workflow's rows: labels, tests and modes, what is missing, and how two maps differ."""

from __future__ import annotations

from dataclasses import replace

from ci_tasks.model import Row
from ci_tasks.suites.coverage.coverage import Coverage, labels, summary
from ci_tasks.suites.coverage.describe import main_coverage
from ci_tasks.suites.coverage.diff import difference
from ci_tasks.suites.coverage.gaps import gaps

TRAIN = """
import argparse
import slime.utils.external_utils.command_utils as U
MODEL_NAME = "Some-1B"
p = argparse.ArgumentParser()
p.add_argument("--async-save", action="store_true")
extra = "--async-save " if p.parse_args().async_save else ""
U.execute_train(f"--ci-test --colocate --advantage-estimator ppo {extra}", 8, None)
"""
ARGUMENTS = """
parser.add_argument("--advantage-estimator", choices=["grpo", "ppo", "cispo"], default="grpo")
parser.add_argument("--train-backend", choices=["megatron"], default="megatron")
parser.add_argument("--wandb-mode", choices=["on", "off"])
"""
FILES = {
    "tests/test_train.py": TRAIN,
    "tests/test_unit.py": "import pytest\ndef test_x(): ...\nif __name__ == '__main__':\n    pytest.main([__file__])\n",
    "tests/test_idle.py": "def test_x(): ...\n",
    "tests/test_alone.py": "x = 1\n",
    "tests/helpers.py": "x = 1\n",
    "slime/utils/arguments.py": ARGUMENTS,
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


def covered(rows: list[Row], files: dict[str, str] = FILES, name: str = "now") -> Coverage:
    found = labels(rows, files.get)
    return Coverage(name, "pr-test.yml", found, gaps(found, files, files.get))


def items(coverage: Coverage) -> dict[str, tuple[str, ...]]:
    return {gap.key: gap.items for gap in coverage.gaps}


def test_rows_of_one_test_are_one_entry_with_a_mode_each() -> None:
    first, _, again, changed = covered(ROWS).labels
    (entry,) = first.entries
    assert [entry.own(mode) for mode in entry.modes] == [(), ("async checkpoint save",)]
    assert main_coverage(entry) == "Some-1B dense, PPO, colocated, offload/onload, async checkpoint save"
    assert (again.same_as, changed.dynamic) == ("a", "needs.detect.outputs.matrix")


def test_a_backend_is_told_as_a_whole() -> None:
    (backend,) = summary(covered(ROWS)).values()
    assert (backend.rows, backend.dense, backend.moe, backend.algorithms) == (4, ("Some-1B",), (), ("PPO",))


def test_gaps_are_found() -> None:
    found = items(covered(ROWS))
    assert found["backends"] == (
        *("FSDP backend (and `--train-backend` does not offer it)", "multi-node training"),
        *("VLM / multimodal training", "AMD / NPU machines"),
    )
    assert found["options"] == ("`--advantage-estimator`: cispo",), "a default counts, and tracking does not"
    assert found["unregistered"] == ("tests/test_alone.py",)
    assert found["vacuous"] == ("tests/test_idle.py",)
    assert found["missing"] == ("tests/test_gone.py",)
    assert found["smoke"] == ("tests/test_train.py",)
    assert found["unasserted"] == ("PPO", "offload/onload", "async checkpoint save")
    assert "no-ci-test" not in found and "unread" not in found


def test_an_assertion_or_a_flag_closes_its_gap() -> None:
    source = TRAIN.replace("--ci-test", "--actor-num-nodes 2 --train-backend fsdp") + "assert U.done()\n"
    found = items(covered(ROWS, {**FILES, "tests/test_train.py": source}))
    assert found["backends"][0] == "megatron backend"
    assert "multi-node training" not in found["backends"]
    assert "smoke" not in found and "unasserted" not in found
    assert found["no-ci-test"] == ("tests/test_train.py",)


def test_a_change_is_told_by_what_it_adds_and_loses() -> None:
    before = covered(ROWS, name="before")
    source = TRAIN.replace("ppo", "gspo") + "assert U.done()\n"
    rows = [replace(one, gpus=4) for one in ROWS if one.args == "" and one.label == "a"] + [row("a", "test_unit.py")]
    changed = difference(before, covered(rows, {**FILES, "tests/test_train.py": source}))
    assert changed.added == ("a: unit",)
    assert "a: train[async-save]" in changed.removed
    assert (changed.lost, changed.gained) == (("PPO", "async checkpoint save"), ("GSPO",))
    assert [(one.what, one.before, one.after) for one in changed.altered if one.test == "tests/test_train.py"] == [
        ("GPUs", "8", "4"),
        ("coverage", "PPO, async checkpoint save", "GSPO"),
        ("checks", "smoke, `--ci-test`", "1 assertion after the run, `--ci-test`"),
    ]
    assert "Smoke only: tests/test_train.py" in changed.closed
    assert "Tests in no matrix: tests/test_idle.py" in changed.opened
    assert difference(before, before).empty
