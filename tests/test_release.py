"""A release: the tag's version is the package's, the changelog's section its notes; a tag without one is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = "# Changelog\n\n## Unreleased\n\nnot yet\n\n## 1.2.3 (2026-12-01)\n\nnew\n\n- more\n\n## 1.2.2\n\nold\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in (".ci/release.py", "ci_tasks/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def release(clone: Path, tag: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(clone / ".ci/release.py"), tag]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_the_tag_gives_the_version_and_the_changelog_section_the_notes(clone: Path) -> None:
    assert release(clone, "v1.2.3").stdout == "new\n\n- more\n"
    assert '__version__ = "1.2.3"' in (clone / "ci_tasks/__init__.py").read_text()


@pytest.mark.parametrize("tag", ["v1.2", "1.2.3", "v1.2.30", "v9.9.9", "latest"])
def test_an_invalid_tag_or_missing_notes_fail(clone: Path, tag: str) -> None:
    done = release(clone, tag)
    assert done.returncode == 1
    assert done.stdout == ""
    assert tag.lstrip("v") in done.stderr
