"""Entries added to a hosts.yaml: what the person wrote stays as it was."""

from __future__ import annotations

import pytest

from ci_tasks.features.setup.users_file import block, with_overrides

ENTRY = '{job: cpu, step: "Install dependencies", pip_index: default}'
NOTE = "# by `ci-tasks setup`: for slime"
ADDED = f"overrides:\n  {NOTE}\n  - {ENTRY}\n"

CASES: list[tuple[str, str | None]] = [
    ("", ADDED),
    ("# mine\nhosts:\n  a: {kind: local}  # here\n", f"# mine\nhosts:\n  a: {{kind: local}}  # here\n{ADDED}"),
    # Before the others, with their indentation.
    ("overrides:\n  # of mine\n  - {job: a, step: b, skip: true}\n",
     f"{ADDED}  # of mine\n  - {{job: a, step: b, skip: true}}\n"),
    ("overrides:\n- {job: a, step: b, skip: true}\npools: {}\n",
     f"overrides:\n{NOTE}\n- {ENTRY}\n- {{job: a, step: b, skip: true}}\npools: {{}}\n"),
    # What cannot be added to without changing the rest.
    ("overrides: []\n", None),
    ("overrides: [{job: a, step: b, skip: true}]\n", None),
    ("{hosts: {}}\n", None),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), CASES)
def test_entries_are_added(before: str, after: str | None) -> None:
    assert with_overrides(before, [ENTRY], "for slime") == after


def test_the_block_is_a_file_of_its_own() -> None:
    assert block([ENTRY], "for slime") == ADDED
