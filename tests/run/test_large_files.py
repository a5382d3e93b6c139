"""Large untracked files travel with the working tree, and that is said."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ci_tasks.checkout import snapshot as untracked
from ci_tasks.run.prepare import announce_large_files


def test_their_size_and_names_are_shown_with_what_leaves_them_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(untracked, "LARGE_BYTES", 1000)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for number in range(7):
        file = tmp_path / f"weights-{number}\x1b.bin"
        file.touch()
        os.truncate(file, 300_000_000 if number == 6 else 2_000_000)
    announce_large_files(tmp_path)
    out = capsys.readouterr().out
    assert "312 MB in all: weights-6�.bin" in out and "and 2 more" in out
    assert "add them to .gitignore" in out
