"""The statement that failed, from the tree at its commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.logs.triage.log_triage import triage
from ci_tasks.records import Triage
from ci_tasks.trials.same_failure import ALIKE, compare
from ci_tasks.trials.source_line import path_in_tree, statement_at, with_statement
from tests.parts import git

SOURCE = """\
def check(log_dict):
    assert log_dict["train/ppo_kl"] == 0.0, f"{log_dict=}"
    assert (
        log_dict["train/kl_loss"] == 0.0
    ), f"{log_dict=}"
    if log_dict["x"] > (
        3
    ):
        raise ValueError("x")
"""
KL, KL_LOSS = 'assert log_dict["train/ppo_kl"] == 0.0, f"{log_dict=}"', 'log_dict["train/kl_loss"] == 0.0'

STATEMENTS = [
    (2, KL),
    (4, f'assert ( {KL_LOSS} ), f"{{log_dict=}}"'),
    (6, 'if log_dict["x"] > ( 3 ):'),
    (9, 'raise ValueError("x")'),
    (0, ""),
]


@pytest.mark.parametrize(("line", "statement"), STATEMENTS)
def test_a_line_belongs_to_a_statement(line: int, statement: str) -> None:
    assert statement_at(SOURCE, line) == statement
    assert statement_at("def broken(:\n    assert x\n", 2) == "assert x"


def test_a_path_of_another_machine_is_a_file_of_the_tree() -> None:
    names = ["ray/a.py", "slime/ray/a.py", "b.py", "xslime/ray/a.py"]
    packages = "/usr/lib/python3.12/site-packages/slime/ray/a.py"
    others = ["tests/../b.py", "/root/Megatron-LM/b.py", packages, "/usr/lib/python3.12/c.py"]
    found = {"/root/slime/slime/ray/a.py": "slime/ray/a.py", "b.py": "b.py", **dict.fromkeys(others, "")}
    assert {path: path_in_tree(path, names) for path in found} == found


def failure(line: int, code: str = "") -> Triage:
    log = f'Traceback (most recent call last):\n  File "/root/s/utils/ci.py", line {line}, in check\n'
    log += f"    {code}\n" if code else ""
    return triage([f"{log}AssertionError: log_dict={{'train/ppo_kl': 0.1}}\n".encode()], exit_code=1)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return git.repository(tmp_path, {"utils/ci.py": SOURCE})


def test_what_the_log_lacks_is_read_from_the_commit(repository: Path) -> None:
    kl, loss = (with_statement(failure(line), repository, "HEAD") for line in (2, 4))
    assert kl.evidence is not None and loss.evidence is not None
    assert (kl.evidence.source_line, kl.evidence.metric) == (KL, "ppo_kl")
    assert loss.evidence.metric == "kl_loss"
    assert kl.signature != loss.signature and kl.kind == loss.kind
    found = compare(kl, loss)
    assert found.outcome == ALIKE and [one.what for one in found.differs] == ["statement", "metric"]
    opened = with_statement(failure(3, "assert ("), repository, "HEAD").evidence
    assert opened is not None and KL_LOSS in opened.source_line


@pytest.mark.parametrize(
    "given", [failure(2, "assert other"), failure(3, "raise ("), failure(99), replace(failure(2), evidence=None)]
)
def test_what_is_not_in_the_tree_is_not_seen(given: Triage, repository: Path) -> None:
    assert with_statement(given, repository, "HEAD") == given
    assert with_statement(failure(2), repository, "1" * 40) == failure(2)
    assert with_statement(failure(2), repository, "") == failure(2)
