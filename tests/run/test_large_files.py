"""Large untracked files are announced, and never sent against a person's word."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ci_tasks.checkout import snapshot as untracked
from ci_tasks.checkout.delivery import materialize
from ci_tasks.errors import UsageError
from ci_tasks.run.prepare import announce_large_files
from tests.parts.git import repository


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(untracked, "LARGE_BYTES", 1000)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for number in range(7):
        file = tmp_path / f"weights-{number}\x1b.bin"
        file.touch()
        os.truncate(file, 300_000_000 if number == 6 else 2_000_000)
    return tmp_path


def refuse(question: str) -> str:
    raise AssertionError(question)


def test_sizes_and_names_are_shown_with_what_leaves_them_behind(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    announce_large_files(checkout, to_host=False, ask=refuse)
    out = capsys.readouterr().out
    assert "312 MB in all (to leave them behind, add them to .gitignore" in out
    assert "  300 MB  weights-6�.bin\n" in out and "  and 2 more" in out


@pytest.mark.parametrize("answer", ["", "n", "no", "what?"])
def test_without_a_yes_nothing_is_sent(checkout: Path, answer: str) -> None:
    with pytest.raises(UsageError, match="nothing was sent"):
        announce_large_files(checkout, to_host=True, ask=lambda question: answer)


@pytest.mark.parametrize("answer", ["y", " Yes "])
def test_with_a_yes_they_are(checkout: Path, tmp_path_factory: pytest.TempPathFactory, answer: str) -> None:
    os.truncate(checkout / "weights-6\x1b.bin", 2_000_000)
    questions: list[str] = []

    def ask(question: str) -> str:
        questions.append(question)
        return answer

    announce_large_files(checkout, to_host=True, ask=ask)
    assert questions == ["send them? [y/N] "]
    sent = tmp_path_factory.mktemp("sent") / "workspace"
    materialize(checkout, sent)
    assert [file.stat().st_size for file in sent.glob("weights-*.bin")] == [2_000_000] * 7


def test_without_a_terminal_nobody_is_asked(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    announce_large_files(checkout, to_host=True)
    assert "312 MB in all" in capsys.readouterr().out


def test_where_there_are_none_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    announce_large_files(repository(tmp_path), to_host=True, ask=refuse)
    assert capsys.readouterr().out == ""
