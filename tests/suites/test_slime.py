"""slime's conventions: what an entry of its matrix means."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.errors import UnknownName
from ci_tasks.model import Row, Workflow
from ci_tasks.suites.slime import describe, job_of, select
from ci_tasks.workflow.reader import read

DESCRIBED: list[tuple[dict[str, Any], tuple[str | None, str, int | None]]] = [
    # A file is meant from tests/, unless it says so itself.
    ({"info": {"test_file": "test_a.py", "num_gpus": 8}}, ("tests/test_a.py", "", 8)),
    ({"info": {"test_file": "utils/test_a.py", "num_gpus": 0}}, ("tests/utils/test_a.py", "", 0)),
    ({"info": {"test_file": "tests/test_a.py", "num_gpus": 4}}, ("tests/test_a.py", "", 4)),
    # Arguments: in the file's string in old revisions, on their own since.
    ({"info": {"test_file": "test_a.py --async-save"}}, ("tests/test_a.py", "--async-save", None)),
    ({"info": {"test_file": "test_a.py", "test_args": "--a 1  --b"}}, ("tests/test_a.py", "--a 1  --b", None)),
    ({"info": {"test_file": " test_a.py\t--a ", "test_args": "--b"}}, ("tests/test_a.py", "--a --b", None)),
    ({"info": {"test_file": "test_a.py", "test_args": None}}, ("tests/test_a.py", "", None)),
    # Without `info`, as in older workflows of others.
    ({"test_file": "test_a.py", "num_gpus": "2"}, ("tests/test_a.py", "", 2)),
    # GPUs that are no number are unknown.
    ({"info": {"test_file": "a.py", "num_gpus": "many"}}, ("tests/a.py", "", None)),
    ({"info": {"test_file": "a.py", "num_gpus": float("inf")}}, ("tests/a.py", "", None)),
    ({"info": {"test_file": "a.py", "num_gpus": True}}, ("tests/a.py", "", None)),
    ({"info": {"test_file": "a.py", "num_gpus": 8.0}}, ("tests/a.py", "", 8)),
    # Matrices that are not slime's.
    ({}, (None, "", None)),
    ({"python": "3.12", "num_gpus": 2}, (None, "", 2)),
    ({"info": "word"}, (None, "", None)),
    ({"info": {"test_file": ""}}, (None, "", None)),
    ({"info": {"test_file": " "}}, ("tests/", "", None)),
]


@pytest.mark.parametrize(("combination", "described"), DESCRIBED)
def test_a_matrix_entry_names_a_test_its_arguments_and_its_gpus(combination: dict[str, Any], described: Any) -> None:
    assert describe(combination) == described


def workflow() -> Workflow:
    text = """\
on: pull_request
jobs:
  cpu-unittest: {runs-on: ubuntu-latest, steps: [{run: x}], strategy: {matrix: {info: [{test_file: test_a.py}]}}}
  e2e-test-ckpt: {runs-on: gpu, steps: [{run: x}], strategy: {matrix: {info: [{test_file: b.py}, {test_file: c.py}]}}}
"""
    return read(text, "w.yml")


@pytest.mark.parametrize(
    ("label", "job"),
    [("ckpt", "e2e-test-ckpt"), ("e2e-test-ckpt", "e2e-test-ckpt"), ("cpu-unittest", "cpu-unittest")],
)
def test_a_job_is_found_by_its_label_and_by_its_name(label: str, job: str) -> None:
    assert job_of(workflow(), label).id == job


def test_an_unknown_label_names_the_nearest_and_all_others() -> None:
    with pytest.raises(UnknownName) as caught:
        job_of(workflow(), "ckp")
    assert str(caught.value) == "no label 'ckp' in w.yml; did you mean 'ckpt'?\nvalid: ckpt, cpu-unittest"


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
    assert str(caught.value) == "no row 'ckpr' in label megatron; did you mean 'ckpt'?\nvalid: ckpt, ppo"
