"""Two working trees side by side: all that git would record of each, and nothing of their repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ci_tasks.checkout import conversions
from ci_tasks.checkout.tree_pair import all_conversions, copy_side_by_side


def _git(path: Path, *args: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *identity, *args], cwd=path, check=True, capture_output=True, text=True).stdout


def _repository(path: Path) -> Path:
    path.mkdir()
    _git(path, "init", "--quiet")
    (path / "kept").write_text("1")
    (path / ".gitignore").write_text("left-out\n")
    _git(path, "add", "--all")
    _git(path, "commit", "--quiet", "-m", "one")
    return path


def test_each_tree_is_there_as_it_stands_with_submodules_and_without_repositories(tmp_path: Path) -> None:
    inner, first, two = (_repository(tmp_path / name) for name in ("inner", "one", "two"))
    _git(first, "submodule", "--quiet", "add", str(inner), "3rdparty/inner")
    _git(first, "commit", "--quiet", "-m", "two")
    (first / "kept").write_text("edited")
    (first / "new").write_text("untracked")
    (first / "left-out").write_text("ignored")
    into = tmp_path / "pair"
    into.mkdir()
    checkouts = copy_side_by_side({"a": first, "b": two}, into)
    files = {str(path.relative_to(into)) for path in into.rglob("*") if path.is_file()}
    assert {"a/kept", "a/new", "a/3rdparty/inner/kept", "b/kept"} <= files
    assert not any(".git/" in f"/{name}/" or "left-out" in name for name in files)
    assert (into / "a/kept").read_text() == "edited"
    assert sorted(checkouts["a"].dirty) == ["kept", "new"]
    assert (checkouts["b"].dirty, checkouts["b"].commit) == ((), _git(two, "rev-parse", "HEAD").strip())
    assert _git(first, "status", "--short").split() == ["M", "kept", "??", "new"], "the checkout stays as it was"


def test_what_ci_would_convert_is_named_with_its_tree_and_the_reason(tmp_path: Path) -> None:
    first, two, inner = (_repository(tmp_path / name) for name in ("one", "two", "inner"))
    _git(first, "config", "filter.upper.clean", "tr a-z A-Z")
    (first / ".gitattributes").write_text("*.txt filter=upper\n*.bin filter=lfs\n")
    (first / "shout.txt").write_text("lower\n")
    (first / "model.bin").write_text("weights")
    _git(two, "submodule", "--quiet", "add", str(inner), "3rdparty/inner")
    _git(two, "commit", "--quiet", "-m", "two")
    (two / "3rdparty/inner/.gitignore").write_bytes(b"left-out\r\n")
    into = tmp_path / "pair"
    into.mkdir()
    named = {found.why: found.files for found in all_conversions(copy_side_by_side({"a": first, "b": two}, into))}
    assert named == {
        "the filter upper: CI's checkout does not have it": ("a/shout.txt",),
        conversions.LFS: ("a/model.bin",),
        conversions.LINE_ENDS: ("b/3rdparty/inner/.gitignore",),
    }
    assert (into / "a/shout.txt").read_text() == "lower\n"
