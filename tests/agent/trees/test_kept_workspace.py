"""A kept workspace is brought to another tree, and nothing outside of it changes, whatever the job has left there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent.records import CheckoutPart, Retry
from ci_tasks.agent.trees.kept_workspace import NotKept, update_workspace


class Kept:
    """The workspace of a run that was kept, with a submodule, and what a retry needs to go on in it."""

    def __init__(self, path: Path) -> None:
        self.path, self.store, self.workspace = path, path / "store.git", path / "run/workspace"
        self.git("init", "--quiet", "--bare", str(self.store))
        old, old_sub = self.parts("old\n")
        self.new = self.parts("new\n")
        for part in (old, old_sub):
            directory = self.workspace / part.path
            self.git("clone", "--quiet", "--no-checkout", str(self.store), str(directory))
            self.git("-C", str(directory), "fetch", "--quiet", "origin", part.commit)
            self.git("-C", str(directory), "checkout", "--quiet", "--detach", part.commit)
        self.retry = Retry((str(path / "run"),), 1, old.commit, old.tree)

    def git(self, *argv: str, input: str = "") -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True, input=input).stdout.strip()

    def parts(self, text: str) -> tuple[CheckoutPart, CheckoutPart]:
        blob = self.git("-C", str(self.store), "hash-object", "-w", "--stdin", input=text)
        sub = self.part("sub", f"100644 blob {blob}\tfile\n")
        flat = self.git(
            "-C", str(self.store), "mktree", input=f"100644 blob {blob}\tfile\n040000 tree {sub.tree}\tsub\n"
        )
        top = self.part("", f"100644 blob {blob}\tfile\n160000 commit {sub.commit}\tsub\n")
        return replace(top, flat=flat), sub

    def part(self, path: str, entries: str) -> CheckoutPart:
        tree = self.git("-C", str(self.store), "mktree", "--missing", input=entries)
        commit = self.git("-C", str(self.store), "commit-tree", tree, "-m", "x")
        self.git("-C", str(self.store), "update-ref", f"refs/heads/{commit}", commit)
        return CheckoutPart(path, commit, tree)

    def update(self) -> None:
        update_workspace(
            str(self.workspace), self.retry, self.new, str(self.path / "retry"), lambda _: [str(self.store / "objects")]
        )

    @property
    def files(self) -> list[str]:
        return [(self.workspace / name).read_text() for name in ("file", "sub/file")]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_files_and_head_are_those_of_the_new_tree(kept: Kept) -> None:
    kept.update()
    assert kept.files == ["new\n", "new\n"]
    assert kept.git("-C", str(kept.workspace), "rev-parse", "HEAD") == kept.new[0].commit
    assert kept.git("-C", str(kept.workspace), "status", "--porcelain") == ""


@pytest.mark.parametrize(
    "put",
    [
        lambda shallow, outside: shallow.symlink_to(outside / "file"),
        lambda shallow, _: os.mkfifo(shallow),
    ],
)
@pytest.mark.timeout(20)
def test_what_stands_for_a_file_of_git_is_replaced(kept: Kept, put: Callable[[Path, Path], object]) -> None:
    outside = kept.path / "outside"
    outside.mkdir()
    (outside / "file").write_text("theirs\n")
    put(kept.workspace / ".git/shallow", outside)
    kept.update()
    assert (outside / "file").read_text() == "theirs\n"
    assert (kept.workspace / ".git/shallow").read_text() == f"{kept.new[0].commit}\n"


def test_a_link_in_the_place_of_a_submodule_leads_nowhere(kept: Kept) -> None:
    (kept.workspace / "sub").rename(kept.path / "outside")
    (kept.workspace / "sub").symlink_to(kept.path / "outside")
    with pytest.raises(NotKept, match="is gone, or leads elsewhere"):
        kept.update()
    assert (kept.path / "outside/file").read_text() == "old\n"
