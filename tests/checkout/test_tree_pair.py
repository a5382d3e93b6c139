"""Two working trees side by side: all that git would record of each, and nothing of their repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ci_tasks.checkout.tree_pair import copy_side_by_side, unlike_disk


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


def test_what_is_not_on_disk_as_it_is_copied_is_named_with_its_tree_and_the_reason(tmp_path: Path) -> None:
    first, two, inner = (_repository(tmp_path / name) for name in ("one", "two", "inner"))
    # Each tree in a way of its own: a clean filter, a sparse checkout, Git LFS, a submodule's line ends.
    _git(first, "config", "filter.upper.clean", "tr a-z A-Z")
    (first / ".gitattributes").write_text("*.txt filter=upper\n*.bin filter=lfs\n")
    _git(first, "config", "filter.lfs.clean", "echo version https://git-lfs.github.com/spec/v1")
    (first / "shout.txt").write_text("lower\n")
    (first / "model.bin").write_text("weights")
    _git(inner, "config", "core.autocrlf", "true")
    (two / "sub").mkdir()
    (two / "sub/absent").write_text("1")
    _git(two, "submodule", "--quiet", "add", str(inner), "3rdparty/inner")
    _git(two / "3rdparty/inner", "config", "core.autocrlf", "true")
    (two / "3rdparty/inner/kept").write_bytes(b"one\r\n")
    _git(two, "add", "--all")
    _git(two, "commit", "--quiet", "-m", "two")
    _git(two, "sparse-checkout", "set", "3rdparty")
    into = tmp_path / "pair"
    into.mkdir()
    named = {found.why: found.files for found in unlike_disk(copy_side_by_side({"a": first, "b": two}, into))}
    assert named == {
        "the attribute filter=upper converts them": ("a/shout.txt",),
        "Git LFS: their pointers are tested": ("a/model.bin",),
        "they are not on disk: a sparse checkout, or skip-worktree": ("b/sub/absent",),
        "git converts their line ends": ("b/3rdparty/inner/kept",),
    }
    assert (into / "a/shout.txt").read_text() == "LOWER\n"
    assert (into / "b/sub/absent").exists()
