"""What is tested is what is on disk, byte for byte, and what CI's checkout would convert is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.agent.trees.store import TreeStore
from ci_tasks.checkout import conversions
from ci_tasks.checkout.clone import materialize
from ci_tasks.checkout.pack import thin_pack
from ci_tasks.checkout.snapshot import take_snapshot
from ci_tasks.executors.host_snapshot import RemoteSnapshot
from ci_tasks.records import Checkout

repositories = sys.modules["ci_tasks_tests_repositories"]
git, make_repo, commit, contents = (
    repositories.git,
    repositories.make_repo,
    repositories.commit,
    repositories.contents,
)


def travelled(repo: Path, directory: Path) -> tuple[Checkout, Path]:
    """As on a host over SSH."""
    snapshot, host = take_snapshot(repo, directory / "client"), TreeStore(str(directory / "host.git"))
    host.receive(thin_pack(snapshot, []))
    workspace = directory / "there"
    shutil.rmtree(workspace, ignore_errors=True)
    host.check_out(RemoteSnapshot(snapshot.checkout, snapshot).checkout_parts(), str(workspace))
    return snapshot.checkout, workspace


def files(root: Path, names: set[bytes] | None = None) -> dict[bytes, tuple[bytes, bool]]:
    """By name: the content, and whether it is executable; only `names` if they are given."""
    top = os.fsencode(root)
    return {
        name: (content, bool(os.lstat(os.path.join(top, name)).st_mode & 0o100))
        for name, content in contents(root).items()
        if names is None or name in names
    }


def not_ignored(repo: Path, prefix: bytes = b"") -> set[bytes]:
    """What is on disk and no ignored file, repositories inside included."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    output = subprocess.run(listing, cwd=repo, capture_output=True, check=True).stdout
    names = {prefix + name for name in output.split(b"\0") if name}
    for inner in (b"third party", b"nested"):
        path = repo / os.fsdecode(inner)
        if not prefix and (path / ".git").exists():
            names = {name for name in names if not name.startswith(inner)} | not_ignored(path, inner + b"/")
    return names


def left_out(repo: Path) -> set[bytes]:
    """What git was told to skip, and is not there."""
    listed = subprocess.run(["git", "ls-files", "-t", "-z"], cwd=repo, capture_output=True, check=True).stdout
    names = (line[2:] for line in listed.split(b"\0") if line.startswith(b"S "))
    return {name for name in names if not os.path.lexists(os.path.join(os.fsencode(repo), name))}


def assert_is_on_disk(repo: Path, workspace: Path) -> None:
    """But for files that a sparse checkout left out, which are as committed."""
    disk, tested = files(repo, not_ignored(repo)), files(workspace)
    absent = tested.keys() - disk.keys()
    assert {name: tested[name] for name in tested.keys() - absent} == disk
    assert absent <= left_out(repo)


def _lfs(repo: Path) -> None:
    (repo / ".gitattributes").write_text("*.bin filter=lfs\n")
    for number in range(12):
        (repo / f"{number:02}.bin").write_text("large\n")


def _lfs_pointers(repo: Path) -> None:
    _lfs(repo)
    commit(repo)


def _filter(repo: Path) -> None:
    (repo / ".gitattributes").write_text("kept.txt filter=upper\n")
    (repo / "kept.txt").write_text("edited\n")


def _crlf_on_disk(repo: Path) -> None:
    git(repo, "config", "core.autocrlf", "true")
    (repo / "kept.txt").write_bytes(b"kept\r\n")


def _crlf_and_an_edit(repo: Path) -> None:
    (repo / "kept.txt").write_bytes(b"edited\r\n")


def _crlf_when_checked_out(repo: Path) -> None:
    (repo / ".gitattributes").write_text("kept.txt eol=crlf\n")


def _crlf_in_both(repo: Path) -> None:
    _crlf_when_checked_out(repo)
    (repo / "kept.txt").write_bytes(b"kept\r\n")


def _ident_and_encoding(repo: Path) -> None:
    (repo / ".gitattributes").write_text("kept.txt ident\nsub/* text working-tree-encoding=UTF-16LE\n")


def _encoded_on_disk(repo: Path) -> None:
    (repo / ".gitattributes").write_text("kept.txt text working-tree-encoding=UTF-16LE\n")
    (repo / "kept.txt").write_bytes("kept\n".encode("utf-16-le"))


def _attributes_that_convert_nothing(repo: Path) -> None:
    (repo / ".gitattributes").write_text("* text=auto eol=lf\n*.txt -filter\n")


def _executable(repo: Path) -> None:
    (repo / "kept.txt").chmod(0o755)


CONVERTED = "CI's checkout converts them"
CASES = [
    (_lfs, {conversions.LFS: (12, [f"{number:02}.bin" for number in range(10)])}),
    (_lfs_pointers, {}),
    (_filter, {"the filter upper: CI's checkout does not have it": (1, ["kept.txt"])}),
    (_crlf_on_disk, {conversions.LINE_ENDS: (1, ["kept.txt"])}),
    (_crlf_and_an_edit, {}),
    (_crlf_when_checked_out, {f"{CONVERTED}: eol=crlf": (1, ["kept.txt"])}),
    (_crlf_in_both, {}),
    (
        _ident_and_encoding,
        {
            f"{CONVERTED}: ident=set": (1, ["kept.txt"]),
            f"{CONVERTED}: working-tree-encoding=UTF-16LE": (1, ["sub/inner.txt"]),
        },
    ),
    (_encoded_on_disk, {}),
    (_attributes_that_convert_nothing, {}),
    (_executable, {}),
]


@pytest.mark.parametrize(("change", "expected"), CASES, ids=[change.__name__.strip("_") for change, _ in CASES])
def test_what_ci_converts_has_its_reason_and_the_first_of_its_files(
    repo: Path, tmp_path: Path, change: Callable[[Path], None], expected: dict[str, tuple[int, list[str]]]
) -> None:
    change(repo)
    checkout, workspace = travelled(repo, tmp_path)
    assert {found.why: (found.count, list(found.files)) for found in checkout.conversions} == expected
    assert_is_on_disk(repo, workspace)


def _file_mode(repo: Path) -> None:
    git(repo, "config", "core.fileMode", "false")
    (repo / "kept.txt").chmod(0o755)


def _symlinks(repo: Path) -> None:
    (repo / "link").symlink_to("kept.txt")
    commit(repo)
    git(repo, "config", "core.symlinks", "false")
    (repo / "link").unlink()
    (repo / "link").write_text("kept.txt")


def _assumed_unchanged(repo: Path) -> None:
    """What git was told not to look at is edited, or gone."""
    git(repo, "update-index", "--assume-unchanged", "kept.txt", "sub/inner.txt")
    (repo / "kept.txt").write_text("edited\n")
    (repo / "sub/inner.txt").unlink()


def _edit_that_git_is_told_to_miss(repo: Path) -> None:
    git(repo, "config", "core.checkStat", "minimal")
    git(repo, "config", "core.trustctime", "false")
    before = os.stat(repo / "kept.txt")
    os.utime(repo / "kept.txt", ns=(before.st_atime_ns, before.st_mtime_ns - 10**10))
    git(repo, "add", "kept.txt")
    (repo / "edited").write_text("KEPT\n")
    os.utime(repo / "edited", ns=(before.st_atime_ns, before.st_mtime_ns - 10**10))
    (repo / "edited").rename(repo / "kept.txt")


def _tracked_and_ignored(repo: Path) -> None:
    """What a rule begins to ignore stays tracked; what nobody tracks does not travel any more."""
    (repo / ".gitignore").write_text("*.txt\n")
    (repo / "kept.txt").write_text("edited\n")


def _sparse(repo: Path) -> None:
    git(repo, "sparse-checkout", "set", "--no-cone", "/kept.txt")


def _sparse_with_a_link_for_a_directory(repo: Path) -> None:
    _sparse(repo)
    (repo / "sub").symlink_to("elsewhere")


def _sparse_with_a_file_for_a_directory(repo: Path) -> None:
    _sparse(repo)
    (repo / "sub").write_text("a file\n")


def _file_for_a_submodule(repo: Path) -> None:
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},gone")
    (repo / "gone").write_text("a file\n")


@pytest.mark.parametrize(
    "change",
    [
        _sparse_with_a_link_for_a_directory,
        _sparse_with_a_file_for_a_directory,
        _file_for_a_submodule,
        _file_mode,
        _symlinks,
        _assumed_unchanged,
        _edit_that_git_is_told_to_miss,
        _tracked_and_ignored,
        _sparse,
    ],
)
def test_a_change_that_the_users_git_would_miss_is_seen_by_a_warm_index_too(
    repo: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    (repo / "untracked.txt").write_text("untracked\n")
    travelled(repo, tmp_path)
    change(repo)
    assert_is_on_disk(repo, travelled(repo, tmp_path)[1])


def test_an_index_whose_objects_are_gone_is_not_believed(repo: Path, tmp_path: Path) -> None:
    (repo / "new.txt").write_text("new\n")
    travelled(repo, tmp_path)
    for kept in (tmp_path / "client/recorded").glob("??/*"):
        kept.unlink()
    assert_is_on_disk(repo, travelled(repo, tmp_path)[1])


def test_files_of_a_submodule_are_named_from_the_checkouts_root(with_submodule: Path, tmp_path: Path) -> None:
    _crlf_when_checked_out(with_submodule / "third party")
    checkout, _ = travelled(with_submodule, tmp_path)
    assert [found.files for found in checkout.conversions] == [("third party/kept.txt",)]


def test_a_revision_is_tested_as_committed(repo: Path, tmp_path: Path) -> None:
    _crlf_when_checked_out(repo)
    commit(repo)
    _crlf_in_both(repo)
    made = materialize(repo, tmp_path / "w", rev="HEAD")
    assert [found.files for found in made.conversions] == [("kept.txt",)]
    assert (tmp_path / "w/kept.txt").read_bytes() == b"kept\n"


def test_a_directory_inside_a_repository_and_one_without_git_are_looked_at_too(part: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for directory in (part, tmp_path / "plain"):
        (directory / ".gitattributes").write_text("*.txt eol=crlf\n")
        (directory / "b.txt").write_text("b\n")
        made = materialize(directory, tmp_path / "w")
        assert "b.txt" in made.conversions[0].files
