"""Jobs by their labels, and rows by parts of their names."""

from __future__ import annotations

import pytest

from ci_tasks.errors import UnknownName
from ci_tasks.workflow.model import Row, Workflow
from ci_tasks.workflow.reader import read
from ci_tasks.workflow.rows import job_of, select


def workflow() -> Workflow:
    text = """\
on: pull_request
jobs:
  cpu-unittest: {runs-on: ubuntu-latest, steps: [{run: x}], strategy: {matrix: {info: [{test_file: test_a.py}]}}}
  e2e-test-ckpt: {runs-on: gpu, steps: [{run: x}], strategy: {matrix: {info: [{test_file: b.py}, {test_file: c.py}]}}}
"""
    return read(text, "w.yml")


@pytest.mark.parametrize(
    ("label", "job"), [("ckpt", "e2e-test-ckpt"), ("e2e-test-ckpt", "e2e-test-ckpt"), ("cpu-unittest", "cpu-unittest")]
)
def test_a_job_is_found_by_its_label_and_by_its_name(label: str, job: str) -> None:
    assert job_of(workflow(), label).id == job


def test_an_unknown_label_names_the_nearest_and_all_others() -> None:
    with pytest.raises(UnknownName) as caught:
        job_of(workflow(), "ckp")
    assert str(caught.value) == "unknown label 'ckp' in w.yml; did you mean 'ckpt'?\nvalid: ckpt, cpu-unittest"


def named(*names: str) -> list[Row]:
    return [Row("l", "l", None, name, None, "", None, None, {}, "self-hosted", None) for name in names]


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        (None, ["ppo", "ppo_long", "ckpt[a]"]),
        ("", ["ppo", "ppo_long", "ckpt[a]"]),
        ("ppo", ["ppo", "ppo_long"]),
        ("long", ["ppo_long"]),
        # Several parts, in the order of the rows.
        ("ckpt, long", ["ppo_long", "ckpt[a]"]),
        (" , ckpt[a] ,", ["ckpt[a]"]),
    ],
)
def test_only_chooses_rows_by_parts_of_their_names(only: str | None, chosen: list[str]) -> None:
    assert [row.row for row in select(named("ppo", "ppo_long", "ckpt[a]"), only, "l")] == chosen


def test_a_part_that_no_row_has_is_an_error_even_beside_one_that_fits() -> None:
    with pytest.raises(UnknownName) as caught:
        select(named("ppo", "ckpt"), "ppo,ckpr", "megatron")
    assert str(caught.value) == "unknown row 'ckpr' in label megatron; did you mean 'ckpt'?\nvalid: ckpt, ppo"
