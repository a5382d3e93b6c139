"""Real repositories in every state that a working tree can be in, and what must not change in them."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


def contents(root: Path) -> dict[bytes, tuple[bytes, int]]:
    """By name, without .git: the bytes of a file or the target of a link, and what git knows of its mode."""
    found, top = {}, os.fsencode(root)
    for directory, names, files in os.walk(top):
        names[:] = [name for name in names if name != b".git"]
        for name in [*files, *(link for link in names if os.path.islink(os.path.join(directory, link)))]:
            path = os.path.join(directory, name)
            if name != b".git":
                content = os.readlink(path) if os.path.islink(path) else Path(os.fsdecode(path)).read_bytes()
                found[os.path.relpath(path, top)] = (content, os.lstat(path).st_mode & 0o170100)
    return found


MERGE = (
    "git checkout -q -b other && echo t > kept.txt && git commit -qam t && git checkout -q main && echo o > kept.txt"
)
SETTINGS = "core.quotepath=true status.relativePaths=true diff.noprefix=true add.ignoreErrors=true core.fileMode=false"
# What is done to a repository, in shell, and which files of it are dirty then.
CHANGES: dict[str, tuple[str, list[str]]] = {
    "modified": ("echo changed > kept.txt", ["kept.txt"]),
    "staged": ("echo x > new; git add new", ["new"]),
    "staged and changed again": ("echo x > kept.txt; git add kept.txt; echo y > kept.txt", ["kept.txt"]),
    "deleted": ("rm kept.txt", ["kept.txt"]),
    "deleted from the index only": ("git rm -q --cached kept.txt", []),
    "renamed": ("git mv kept.txt renamed.txt", ["kept.txt", "renamed.txt"]),
    "untracked": ("mkdir 'new dir'; echo x > 'new dir/new'; touch empty", ["empty", "new dir/new"]),
    "intent to add": ("echo x > meant; git add --intent-to-add meant", ["meant"]),
    "force-added": ("echo x > wanted.log; git add --force wanted.log", ["wanted.log"]),
    "tracked and ignored": ("echo '*.txt' > .gitignore; echo x | tee kept.txt > new.txt", [".gitignore", "kept.txt"]),
    "executable": ("git config core.fileMode false; chmod +x kept.txt", ["kept.txt"]),
    "links": ("ln -s nowhere a; ln -s /etc/passwd b; ln -s sub c", ["a", "b", "c"]),
    "a link for a directory": ("rm -r sub; ln -s /tmp sub", ["sub", "sub/inner.txt"]),
    "a file becomes a directory": ("rm kept.txt; mkdir kept.txt; echo x > kept.txt/x", ["kept.txt", "kept.txt/x"]),
    "odd names": ("touch -- 'new\n\tline' 'sp ace '\\'' \"$HOME `x` \\' ünï -n ':(top)x' git~1", ["odd"]),
    "no text": ("touch \"$(printf 'not\\377utf8')\"", ["not\\xffutf8"]),
    "unmerged": (f"{MERGE}; git commit -qam o; git merge -q other", ["kept.txt"]),
    "detached": ("git checkout -q --detach; echo x > kept.txt", ["kept.txt"]),
    "settings": (f"for s in {SETTINGS}; do git config ${{s%=*}} ${{s#*=}}; done; touch 'ü x'", ["ü x"]),
    "assume unchanged": ("git update-index --assume-unchanged kept.txt; echo x > kept.txt", ["kept.txt"]),
    "skipped": ("git update-index --skip-worktree kept.txt; echo x > kept.txt", ["kept.txt"]),
    "split index": ("git config core.splitIndex true; git update-index --split-index; touch x y", ["x", "y"]),
    "stashed": ("echo x > kept.txt; git stash -q; echo x > new", ["new"]),
    "attributes": ("echo '*.bat eol=crlf' > .gitattributes; printf 'a\\r\\n' > a.bat", [".gitattributes", "a.bat"]),
    "a file for a submodule": ("git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),g; echo x > g", ["g"]),
}


def change(repo: Path, name: str) -> None:
    subprocess.run(["sh", "-c", CHANGES[name][0]], cwd=repo, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
