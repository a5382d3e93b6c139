"""A release: the tag's version is the package's, the changelog's section its notes; a tag without one is refused."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import zipfile
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
    assert (done.returncode, done.stdout) == (1, "")
    assert tag.lstrip("v") in done.stderr


# -- the wheel, built without network from what is committed: the package and the sample, and no more ------------------


SUFFIXES = {".py", ".yaml", ".json", ".txt", ".css", ".js", ".html", ".j2", ".sh"}  # of the package itself
METADATA = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-tree", "-r", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    return set(listed.stdout.decode().splitlines())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of its files."""
    place = tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "archive", "--format=zip", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    zipfile.ZipFile(io.BytesIO(files)).extractall(place / "source")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place / "dist")]
    subprocess.run(argv, cwd=place / "source", capture_output=True, check=True, timeout=60)
    (built,) = (place / "dist").iterdir()
    return set(zipfile.ZipFile(built).namelist())


def test_the_wheel_has_exactly_the_package_the_sample_and_metadata(wheel: set[str], tracked: set[str]) -> None:
    package = {name for name in tracked if name.startswith("ci_tasks/") and Path(name).suffix in SUFFIXES}
    shipped = {f"ci_tasks/_shipped/{name}" for name in tracked if name.startswith("examples/")}
    metadata = {name for name in wheel if name.partition("/")[0].endswith(".dist-info")}
    assert wheel - metadata == package | shipped
    assert {name.partition("/")[2] for name in metadata} == METADATA


def test_every_tracked_file_of_the_package_has_a_known_suffix(tracked: set[str]) -> None:
    """What is tracked in the folder and no module or data of it would be shipped as well."""
    others = {name for name in tracked if name.startswith("ci_tasks/") and Path(name).suffix not in SUFFIXES}
    assert not others
