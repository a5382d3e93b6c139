"""What differs between two runs, and which of it is named first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from ci_tasks.features.difference.compare import InputDifference, OutputDifference, compare_runs, likely_causes
from ci_tasks.features.difference.report import text
from ci_tasks.features.difference.sides import RunSide
from ci_tasks.features.difference.values import of_series
from ci_tasks.logs.metrics import Series
from ci_tasks.records import Triage

INPUTS: Mapping[str, Mapping[str, str]] = {
    "commit": {"commit": "1111111"},
    "image": {"image": "trainer@sha256:aa"},
    "packages": {"torch": "2.8.0", "flash-attn": "2.7.0"},
    "env": {"LEARNING_RATE": "0.1"},
    "driver": {"driver": "550.54"},
    "host": {"host": "h100a"},
}
OLD = RunSide("old", "ckpt", "row", "h100a", "passed", head="1" * 40, image="trainer@sha256:aa", inputs=INPUTS)
FAILED = Triage("assertion", "failed", 7, "AssertionError: reward", "sig", 0.9, text="AssertionError: reward")
NEW = replace(OLD, id="new", status="failed", triage=FAILED)


def changed(**axes: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
    return {**INPUTS, **{name: {**INPUTS.get(name, {}), **values} for name, values in axes.items()}}


INPUT_CASES: list[tuple[str, Mapping[str, Mapping[str, str]], list[InputDifference]]] = [
    ("nothing", INPUTS, []),
    ("a version", changed(packages={"torch": "2.9.0"}), [InputDifference("packages", "torch", "2.8.0", "2.9.0")]),
    ("a package whose commit one side alone saw", changed(packages={"torch": "2.8.0 (git 1a2b3c4)"}), []),
    ("a digest that was pulled by another name", changed(image={"image": "mirror/trainer:0101@sha256:aa"}), []),
    (
        "two axes, in the order of the axes",
        changed(host={"host": "h100b"}, image={"image": "trainer@sha256:bb"}),
        [InputDifference("image", "image", "trainer@sha256:aa", "trainer@sha256:bb"),
         InputDifference("host", "host", "h100a", "h100b")],
    ),
    ("an overlay that one side alone has", {**INPUTS, "overlay:sglang": {"commit": "1a2b3c4"}},
     [InputDifference("overlay:sglang", "commit", "–", "1a2b3c4")]),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "differences"), [case[1:] for case in INPUT_CASES], ids=[c[0] for c in INPUT_CASES])
def test_inputs_differ_by_name(inputs: Mapping[str, Mapping[str, str]], differences: list[InputDifference]) -> None:
    assert list(compare_runs(OLD, replace(NEW, inputs=inputs)).inputs) == differences


def test_a_name_that_a_log_does_not_show_is_neither_the_same_nor_different() -> None:
    log = replace(OLD, from_ci=True, inputs={**INPUTS, "packages": {"torch": "2.8.0"}, "commit": {"commit": "1111111"}})
    new = replace(NEW, inputs=changed(commit={"tree": "abc"}))
    result = compare_runs(log, new)
    assert result.inputs == ()
    assert "commit" in result.same and "packages" not in result.same
    assert "a part of packages" in result.not_seen
    masked = replace(OLD, inputs=changed(env={"HF_TOKEN": "not seen"}))
    assert compare_runs(masked, NEW).inputs == ()


PASSED, OTHER_ROW = replace(NEW, status="passed", triage=None), replace(OLD, row="other")
REMOTE = f"ci-tasks remote --host h100a ckpt --only row --rev {'1' * 40}"
COMMITS = f"--good {'1' * 40} --bad {'2' * 40}"
ENDS: list[tuple[str, RunSide, RunSide, str]] = [
    ("it broke", OLD, NEW, COMMITS),
    ("it was mended", replace(NEW, head="1" * 40), PASSED, REMOTE),
    ("it was blocked", OLD, replace(NEW, status="blocked"), REMOTE),
    ("both passed", OLD, PASSED, REMOTE),
    ("two rows", OTHER_ROW, NEW, ""),
]


@pytest.mark.parametrize(("old", "new", "of_commit"), [case[1:] for case in ENDS], ids=[case[0] for case in ENDS])
def test_a_search_is_proposed_where_one_run_passed_and_the_other_failed(
    old: RunSide, new: RunSide, of_commit: str
) -> None:
    """Bisect looks for the commit after which a row fails, and refuses other ends after it ran them."""
    new = replace(new, id="new", head="2" * 40, inputs=changed(commit={"commit": "2222222"}))
    sides = replace(old, id="old", metrics={"reward": {"1": 2.0}}), replace(new, metrics={"reward": {"1": 1.0}})
    (cause,) = compare_runs(*sides).causes
    assert of_commit in cause.proof and bool(cause.proof) == bool(of_commit)


SECRETS = [
    ({"MY_API_KEY": "one-1f2e"}, {"MY_API_KEY": "two-3d4c"}, ("***", "***, another value")),
    ({"HF_TOKEN": "one-1f2e"}, {}, ("***", "–")),
    ({}, {"DB": "postgres://user:two-3d4c@host/db"}, ("–", "***")),
    ({"LAYERS": "2"}, {"LAYERS": "3"}, ("2", "3")),
]


@pytest.mark.parametrize(("old", "new", "shown"), SECRETS)
def test_a_value_that_may_be_a_secret_is_never_shown(
    old: Mapping[str, str], new: Mapping[str, str], shown: tuple[str, str]
) -> None:
    sides = [replace(run, inputs=changed(env=values)) for run, values in ((OLD, old), (NEW, new))]
    (found,) = compare_runs(*sides).inputs
    assert (found.old, found.new) == shown


CURVES = [
    ("equal, also where both are not a number", [(1, 0.5), (2, math.nan)], [(1, 0.5), (2, math.nan)], None, ""),
    ("one ULP", [(1, 0.5), (2, 0.7)], [(1, 0.5), (2, math.nextafter(0.7, 1))], 2,
     "+1.1e-16"),
    ("steps that one side lacks", [(1, 0.5), (2, 0.7)], [(2, 0.7), (3, 9.0)], None, ""),
    ("from a step on", [(1, 1.0), (2, 2.0), (3, 3.0)], [(1, 1.0), (2, 2.1), (3, 6.0)], 2,
     "+5.00%"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "step", "note"), [case[1:] for case in CURVES], ids=[case[0] for case in CURVES]
)
def test_metrics_part_at_a_step(
    old: list[tuple[int, float]], new: list[tuple[int, float]], step: int | None, note: str
) -> None:
    sides = [replace(OLD, metrics=of_series([Series("reward", "reward", (tuple(points),))])) for points in (old, new)]
    found = [(each.step, each.note) for each in compare_runs(*sides).outputs]
    assert found == ([] if step is None else [(step, note)])


AMOUNTS = [
    ({"whole run, s": 100.0}, {"whole run, s": 112.0},
     [OutputDifference("time", "whole run, s", "100", "112", note="+12.00%")]),
    ({"whole run, s": 100.0}, {"whole run, s": 104.0}, []),
    ({"step Execute, s": 0.2}, {"step Execute, s": 0.4}, []),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "differences"), AMOUNTS)
def test_times_differ_by_more_than_a_second_and_a_twentieth(
    old: Mapping[str, float], new: Mapping[str, float], differences: list[OutputDifference]
) -> None:
    sides = [replace(OLD, amounts=seconds) for seconds in (old, new)]
    assert list(compare_runs(*sides).outputs) == differences


EVERY = changed(
    commit={"commit": "2222222"},
    image={"image": "trainer@sha256:bb"},
    packages={"flash-attn": "2.8.0"},
    env={"LEARNING_RATE": "0.2"},
    driver={"driver": "560.1"},
    host={"host": "h100b"},
)
ORDERS: list[tuple[str, Triage, list[str]]] = [
    ("code, then image and packages, then the machine", FAILED,
     ["commit", "image", "packages", "env", "host", "driver"]),
    ("a package that the failure names", replace(FAILED, line="RuntimeError: flash_attn has no kernel for this GPU"),
     ["packages", "commit", "image", "env", "host", "driver"]),
    ("a variable that the failure names", replace(FAILED, line="ValueError: LEARNING_RATE must be below 0.15"),
     ["env", "commit", "image", "packages", "host", "driver"]),
]  # fmt: skip


@pytest.mark.parametrize(("triage", "axes"), [case[1:] for case in ORDERS], ids=[case[0] for case in ORDERS])
def test_the_likely_cause_comes_first(triage: Triage, axes: list[str]) -> None:
    new = replace(NEW, inputs=EVERY, triage=triage, head="2" * 40, host="h100b")
    assert [cause.axis for cause in compare_runs(OLD, new).causes] == axes


def test_a_file_that_changed_and_is_in_the_failure_is_named() -> None:
    failed = replace(NEW, triage=replace(FAILED, frames=("/job/slime/train.py:7",)))
    inputs = (InputDifference("image", "image", "a", "b"), InputDifference("commit", "commit", "1", "2"))
    causes = likely_causes(
        OLD, failed, inputs, (OutputDifference("status", "status", "passed", "failed"),), ["slime/train.py"]
    )
    assert [cause.why for cause in causes] == ["the failure is in slime/train.py, which differs", "it differs"]


PROOFS = [
    ("commit", {}, f"ci-tasks bisect ckpt --only row --good {'1' * 40} --bad {'2' * 40} --host h100b"),
    ("commit", {"dirty": ("a.py",)}, f"ci-tasks compare ckpt --only row --base {'1' * 40} --host h100b"),
    ("image", {}, f"ci-tasks remote --host h100b ckpt --only row --rev {'2' * 40} --image trainer@sha256:aa"),
    ("host", {}, f"ci-tasks remote --host h100a ckpt --only row --rev {'2' * 40}"),
    ("commit", {"label": ""}, ""),
]


@pytest.mark.parametrize(
    "new",
    [
        replace(NEW, inputs={**EVERY, "overlay:sglang": {"commit": "1a2b3c4"}}),
        replace(NEW, inputs=EVERY, label="--build=sglang=true"),
    ],
    ids=["an overlay, which may be another machine's", "a label that would be an option"],
)
def test_what_another_side_claims_is_no_command(new: RunSide) -> None:
    causes = compare_runs(OLD, replace(new, head="2" * 40)).causes
    assert causes and not any(cause.proof for cause in causes)


def test_what_a_record_says_breaks_no_line() -> None:
    evil = "x\x1b[2J\r\n## `$(id)`"
    old, new = replace(OLD, host=evil), replace(NEW, id=evil, inputs={**EVERY, f"submodule:{evil}": {"commit": evil}})
    lines = text(old, new, compare_runs(old, replace(new, row=evil)))
    lines += text(old, new, compare_runs(old, new))
    assert all(line.isprintable() for line in lines) and not any(line.startswith("## ") for line in lines)
    assert any("--host 'x" in line for line in lines), "a command quotes what a record says"


@pytest.mark.parametrize(("axis", "new", "command"), PROOFS)
def test_a_command_runs_the_new_side_with_one_input_of_the_old(axis: str, new: dict[str, object], command: str) -> None:
    side = replace(NEW, inputs=EVERY, head="2" * 40, host="h100b", **new)  # type: ignore[arg-type]
    proofs = {cause.axis: cause.proof for cause in compare_runs(OLD, side).causes}
    assert proofs[axis] == command
