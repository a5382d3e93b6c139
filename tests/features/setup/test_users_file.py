"""Overrides added to a hosts.yaml: what the person wrote stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.features.setup.users_file import add

ENTRY = '{job: cpu, step: "Install dependencies", pip_index: default}'
ADDED = f"overrides:\n  # by `ci-tasks setup`: for slime\n  - {ENTRY}\n"

CASES: list[tuple[str, str | None]] = [
    ("", ADDED),
    ("# mine\nhosts:\n  a: {kind: local}  # here\n", f"# mine\nhosts:\n  a: {{kind: local}}  # here\n{ADDED}"),
    ("hosts: {}", f"hosts: {{}}\n{ADDED}"),
    # What cannot be added to without changing the rest.
    ("overrides:\n  # of mine\n  - {job: a, step: b, skip: true}\n", None),
    ("overrides: []\n", None),
    ("{hosts: {}}\n", None),
    ("- a\n", None),
]


@pytest.mark.parametrize(("before", "after"), CASES)
def test_entries_are_added(before: str, after: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(before)
    assert add(file, [ENTRY], "for slime") is (after is not None)
    assert file.read_text() == (before if after is None else after)
    assert ADDED in capsys.readouterr().out


def test_a_file_that_is_a_link_stays_one_and_keeps_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.yaml", tmp_path / "hosts.yaml"
    real.write_text("# mine\n")
    real.chmod(0o600)
    link.symlink_to(real)
    assert add(link, [ENTRY], "for slime")
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o600
    assert real.read_text() == f"# mine\n{ADDED}"
