"""What is tested is what is on disk, byte for byte, and what CI's checkout would convert is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.checkout import overlays
from ci_tasks.checkout.delivery import materialize
from tests.checkout.repositories import commit, contents, git


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
    (_lfs, {overlays.LFS: (12, [f"{number:02}.bin" for number in range(10)])}),
    (_lfs_pointers, {}),
    (_filter, {"the filter upper: CI's checkout does not have it": (1, ["kept.txt"])}),
    (_crlf_on_disk, {overlays.LINE_ENDS: (1, ["kept.txt"])}),
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
    checkout = materialize(repo, tmp_path / "w")
    assert {found.why: (found.count, list(found.files)) for found in checkout.conversions} == expected
    assert contents(tmp_path / "w") == contents(repo)


def test_files_of_a_submodule_are_named_from_the_checkouts_root(with_submodule: Path, tmp_path: Path) -> None:
    _crlf_when_checked_out(with_submodule / "third party")
    checkout = materialize(with_submodule, tmp_path / "w")
    assert [found.files for found in checkout.conversions] == [("third party/kept.txt",)]


def test_a_revision_is_tested_as_committed(repo: Path, tmp_path: Path) -> None:
    _crlf_when_checked_out(repo)
    commit(repo)
    _crlf_in_both(repo)
    made = materialize(repo, tmp_path / "w", rev="HEAD")
    assert [found.files for found in made.conversions] == [("kept.txt",)]
    assert (tmp_path / "w/kept.txt").read_bytes() == b"kept\n"


def test_a_directory_inside_a_repository_and_one_without_git_are_looked_at_too(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for directory in (repo / "sub", tmp_path / "plain"):
        (directory / ".gitattributes").write_text("*.txt eol=crlf\n")
        (directory / "b.txt").write_text("b\n")
        made = materialize(directory, tmp_path / "w")
        assert "b.txt" in made.conversions[0].files
