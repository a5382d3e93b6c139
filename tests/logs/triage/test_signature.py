"""A signature is equal for two runs of one failure and differs for two failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.logs.triage.signature import kind_of, package_of, signature_of, stable
from ci_tasks.records import FailureEvidence
from tests.parts.cases import named

MESSAGES = yaml.safe_load(Path(__file__).with_name("messages.yaml").read_text())
SAME, DIFFERENT = MESSAGES["same"], MESSAGES["different"]


@named(("first", "second"), SAME)
def test_what_varies_from_run_to_run_is_left_out(first: str, second: str) -> None:
    assert stable(first) == stable(second)


@named(("first", "second"), DIFFERENT)
def test_what_makes_it_another_failure_stays(first: str, second: str) -> None:
    assert stable(first) != stable(second)


@given(st.text(max_size=80))
def test_making_it_stable_twice_changes_nothing(message: str) -> None:
    assert stable(stable(message)) == stable(message)


@pytest.mark.timeout(20)
def test_no_message_takes_time_without_end() -> None:
    for part in ("\\", "'a b ", "{'a': b, ", "a.", "/a"):
        assert len(stable(f"'{part * 2000}")) > 1


LINE = 'raise ValueError(f"{batch} has no advantages")'
EVIDENCE = FailureEvidence("ValueError", "no rows", "a.py", "load", source_line=LINE, line=7, source_path="/x/a.py")


def test_a_signature_is_a_few_words_and_a_hash_of_all_of_them() -> None:
    long = replace(EVIDENCE, message="no rows at all " * 9)
    for sign in (kind_of, signature_of):
        summary, _, digest = sign(long).partition("#")
        assert summary.startswith("ValueError: no rows at all")
        assert len(summary) < 90 and digest
        assert sign(replace(long, message=f"{long.message} two")) != sign(long)


LEVELS: list[tuple[str, dict[str, Any], bool, bool]] = [
    ("another exception", {"exception": "KeyError"}, False, False),
    ("another message", {"message": "no columns"}, False, False),
    ("another file", {"file": "b.py"}, False, False),
    ("another statement", {"source_line": LINE.replace("advantages", "rewards")}, True, False),
    ("another metric", {"metric": "kl"}, True, False),
    ("another status code", {"http_status": 429}, True, False),
    ("a renamed function around the same statement", {"function": "read"}, True, True),
    ("a line further down, in another checkout", {"line": 99, "source_path": "/home/me/src/y/a.py"}, True, True),
    ("a file of that name in another package", {"source_path": "/x/ray/a.py"}, True, False),
]


@named(("change", "same_kind", "same"), LEVELS)
def test_what_changes_the_kind_and_what_the_signature(change: dict[str, Any], same_kind: bool, same: bool) -> None:
    other = replace(EVIDENCE, **change)
    assert (kind_of(other) == kind_of(EVIDENCE), signature_of(other) == signature_of(EVIDENCE)) == (same_kind, same)


PACKAGES = {
    "": ["/root/slime/train.py", "/__w/slime/slime/train.py", "./test_a.py", "",
         "/home/me/.ci-tasks/runs/20261123-062221-ckpt-38a7bf/01/workspace/train.py",
         "/tmp/ray/session_2026-11-23/runtime_resources/working_dir_files/_ray_pkg_38a7bf/train.py"],
    "utils": ["/root/slime/slime/utils/data.py", "/home/me/git/slime/slime/utils/data.py",
              "/home/runner/work/slime/slime/slime/utils/data.py"],
    "tests": ["/root/slime/tests/test_a.py", "tests/test_a.py",
              "/home/me/.ci-tasks/runs/20261123-062221-ckpt-38a7bf/01/workspace/tests/test_a.py"],
    "asyncio": ["/usr/lib/python3.12/asyncio/tasks.py"],
    "modules": ["/opt/venv/lib/python3.10/site-packages/torch/nn/modules/linear.py"],
    "managers": ["/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py"],
}  # fmt: skip


def test_the_directory_of_a_file_counts_where_it_is_not_the_tree_itself() -> None:
    assert {name: [path for path in paths if package_of(path) == name] for name, paths in PACKAGES.items()} == PACKAGES
