"""Real repositories in every state that a working tree can be in, and what must not change in them."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def git(directory: Path, *args: str, **extra: str) -> str:
    done = subprocess.run(
        ["git", *args], cwd=directory, capture_output=True, text=True, check=True, env={**os.environ, **extra}
    )
    return done.stdout.strip()


def make_repo(path: Path) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "-q")
    git(path, "symbolic-ref", "HEAD", "refs/heads/main")
    (path / "kept.txt").write_text("kept\n")
    (path / "sub").mkdir()
    (path / "sub/inner.txt").write_text("inner\n")
    (path / ".gitignore").write_text("*.log\n")
    commit(path)
    git(path, "update-ref", "refs/remotes/origin/main", "HEAD")
    return path


def commit(path: Path, message: str = "commit") -> str:
    git(path, "add", "--all")
    git(path, "commit", "-q", "--allow-empty", "-m", message)
    return git(path, "rev-parse", "HEAD")


def fingerprint(root: Path) -> dict[str, tuple[object, ...]]:
    """Names, modes, contents and times of everything below `root`."""
    hashes: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(os.fsencode(root)):
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            stat = os.lstat(path)
            if os.path.islink(path):
                content = os.readlink(path)
            elif os.path.isfile(path):
                with open(path, "rb") as source:
                    content = hashlib.sha256(source.read()).digest()
            else:
                content = b""
            hashes[repr(path)] = (stat.st_mode, stat.st_mtime_ns, content)
    return hashes


@contextmanager
def untouched(root: Path) -> Iterator[None]:
    before = fingerprint(root)
    yield
    assert fingerprint(root) == before


def contents(root: Path) -> dict[bytes, bytes]:
    """Files by name, without .git; a link as its target."""
    texts = {}
    top = os.fsencode(root)
    for directory, names, files in os.walk(top):
        if b".git" in names:
            names.remove(b".git")
        for name in [*files, *(link for link in names if os.path.islink(os.path.join(directory, link)))]:
            if name == b".git":
                continue
            path = os.path.join(directory, name)
            if os.path.islink(path):
                texts[os.path.relpath(path, top)] = b"-> " + os.readlink(path)
            else:
                with open(path, "rb") as source:
                    texts[os.path.relpath(path, top)] = source.read()
    return texts


def modified(repo: Path) -> list[str]:
    (repo / "kept.txt").write_text("changed\n")
    return ["kept.txt"]


def _staged(repo: Path) -> list[str]:
    (repo / "staged.txt").write_text("staged\n")
    git(repo, "add", "staged.txt")
    return ["staged.txt"]


def _staged_and_changed_again(repo: Path) -> list[str]:
    (repo / "kept.txt").write_text("staged\n")
    git(repo, "add", "kept.txt")
    (repo / "kept.txt").write_text("after\n")
    return ["kept.txt"]


def _deleted(repo: Path) -> list[str]:
    (repo / "kept.txt").unlink()
    return ["kept.txt"]


def _deleted_from_the_index_only(repo: Path) -> list[str]:
    git(repo, "rm", "-q", "--cached", "kept.txt")
    return []


def _renamed(repo: Path) -> list[str]:
    git(repo, "mv", "kept.txt", "renamed.txt")
    return ["kept.txt", "renamed.txt"]


def _untracked(repo: Path) -> list[str]:
    (repo / "new dir").mkdir()
    (repo / "new dir/new.txt").write_text("new\n")
    return ["new dir/new.txt"]


def _intent_to_add(repo: Path) -> list[str]:
    (repo / "meant.txt").write_text("meant\n")
    git(repo, "add", "--intent-to-add", "meant.txt")
    return ["meant.txt"]


def _force_added(repo: Path) -> list[str]:
    (repo / "wanted.log").write_text("wanted\n")
    git(repo, "add", "--force", "wanted.log")
    return ["wanted.log"]


def _executable(repo: Path) -> list[str]:
    (repo / "kept.txt").chmod(0o755)
    return ["kept.txt"]


def _links(repo: Path) -> list[str]:
    (repo / "dangling").symlink_to("nowhere")
    (repo / "outside").symlink_to("/etc/passwd")
    (repo / "to-dir").symlink_to("sub", target_is_directory=True)
    return ["dangling", "outside", "to-dir"]


def _file_becomes_directory(repo: Path) -> list[str]:
    (repo / "kept.txt").unlink()
    (repo / "kept.txt").mkdir()
    (repo / "kept.txt/deep.txt").write_text("deep\n")
    return ["kept.txt", "kept.txt/deep.txt"]


def _empty_file(repo: Path) -> list[str]:
    (repo / "empty.txt").touch()
    return ["empty.txt"]


def odd_names(repo: Path) -> list[str]:
    for name in (b"not\xffutf8", b"new\nline", b"sp ace 'quote\" $HOME `x` \\", "ünïcode".encode()):
        with open(os.path.join(os.fsencode(repo), name), "wb") as out:
            out.write(b"odd\n")
    return ["new\nline", "not\\xffutf8", "sp ace 'quote\" $HOME `x` \\", "ünïcode"]


def _option_like(repo: Path) -> list[str]:
    for name in ("-n", "--all", ":(exclude)x"):
        (repo / name).write_text("option\n")
    return ["--all", "-n", ":(exclude)x"]


def _unmerged(repo: Path) -> list[str]:
    git(repo, "checkout", "-q", "-b", "other")
    (repo / "kept.txt").write_text("theirs\n")
    commit(repo)
    git(repo, "checkout", "-q", "main")
    (repo / "kept.txt").write_text("ours\n")
    commit(repo)
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, "merge", "-q", "other")
    assert "<<<<<<<" in (repo / "kept.txt").read_text()
    return ["kept.txt"]


def _detached(repo: Path) -> list[str]:
    git(repo, "checkout", "-q", "--detach")
    return modified(repo)


def _quotepath_and_other_settings(repo: Path) -> list[str]:
    for setting in ("core.quotepath=true", "status.relativePaths=true", "diff.noprefix=true", "add.ignoreErrors=true"):
        git(repo, "config", *setting.split("="))
    return odd_names(repo)


def _assume_unchanged(repo: Path) -> list[str]:
    git(repo, "update-index", "--assume-unchanged", "kept.txt")
    git(repo, "update-index", "--skip-worktree", "sub/inner.txt")
    (repo / "kept.txt").write_text("hidden edit\n")
    (repo / "sub/inner.txt").write_text("hidden as well\n")
    return ["kept.txt", "sub/inner.txt"]


def _split_index(repo: Path) -> list[str]:
    """As many new files as make git begin another shared index, which would be in the user's .git."""
    git(repo, "config", "core.splitIndex", "true")
    git(repo, "update-index", "--split-index")
    names = [f"new{number}.txt" for number in range(9)]
    for name in names:
        (repo / name).write_text("new\n")
    return names


def _stashed(repo: Path) -> list[str]:
    modified(repo)
    git(repo, "stash", "-q")
    return _untracked(repo)


def _crlf_by_attributes(repo: Path) -> list[str]:
    (repo / ".gitattributes").write_text("*.bat text eol=crlf\n")
    (repo / "run.bat").write_bytes(b"one\r\ntwo\r\n")
    return [".gitattributes", "run.bat"]


CHANGES = [
    modified,
    _staged,
    _staged_and_changed_again,
    _deleted,
    _deleted_from_the_index_only,
    _renamed,
    _untracked,
    _intent_to_add,
    _force_added,
    _executable,
    _links,
    _file_becomes_directory,
    _empty_file,
    odd_names,
    _option_like,
    _unmerged,
    _detached,
    _quotepath_and_other_settings,
    _assume_unchanged,
    _split_index,
    _stashed,
    _crlf_by_attributes,
]
