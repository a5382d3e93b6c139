"""A directory is a tree where every name, mode, link and byte is: whatever git's index, settings and objects say."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.agent import archive
from ci_tasks.agent.trees import file_hashes
from ci_tasks.agent.trees.file_hashes import is_same_file
from ci_tasks.agent.trees.git import HostGit, MissingBase, StoreError
from ci_tasks.agent.trees.objects import TreeEntries, TreeEntry, object_id, object_reader, read_tree
from ci_tasks.agent.trees.verify import different_files, verify_checkout


def git(directory: Path, *args: str, input: bytes | None = None) -> bytes:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_NO_REPLACE_OBJECTS": "1"}
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.com", "-c", "core.safecrlf=false")
    command = ["git", *identity, *args]
    return subprocess.run(command, cwd=directory, env=env, input=input, capture_output=True, check=True).stdout


def text(directory: Path, *args: str, input: bytes | None = None) -> str:
    return git(directory, *args, input=input).decode().strip()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repo = tmp_path_factory.mktemp("original") / "repo"
    (repo / "deep/er").mkdir(parents=True)
    git(repo, "init", "-q")
    (repo / "a").write_text("a\n")
    (repo / "deep/er/b").write_text("b\n")
    (repo / "run").write_text("#!/bin/sh\n")
    (repo / "run").chmod(0o755)
    (repo / "link").symlink_to("a")
    (repo / "empty").touch()
    os.mkdir(os.path.join(os.fsencode(repo), b"not\xffutf8\n"))
    with open(os.path.join(os.fsencode(repo), b"not\xffutf8\n", b"c"), "wb") as out:
        out.write(os.urandom(3 << 20))
    commit(repo)
    return repo


@pytest.fixture
def repo(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "repo", symlinks=True)
    return tmp_path / "repo"


def commit(repo: Path) -> None:
    git(repo, "add", "--all")
    git(repo, "commit", "-q", "-m", "commit")


def entries_of(repo: Path, commit: str = "HEAD") -> TreeEntries:
    name, tree = text(repo, "rev-parse", commit, f"{commit}^{{tree}}").split()
    with object_reader(HostGit(str(repo / ".git"), str(repo)), "sha1") as reader:
        return read_tree(reader, name, tree)


def different(repo: Path) -> list[bytes]:
    return different_files(os.fsencode(repo), entries_of(repo), "sha1")


def verify(repo: Path) -> None:
    host_git = HostGit(str(repo / ".git"), str(repo))
    name, tree = text(repo, "rev-parse", "HEAD", "HEAD^{tree}").split()
    with object_reader(host_git, "sha1") as reader:
        verify_checkout(host_git, tree, read_tree(reader, name, tree), "sha1")


def test_entries_are_what_git_lists(repo: Path) -> None:
    listed = git(repo, "ls-tree", "-r", "-z", "HEAD").split(b"\0")[:-1]
    entries = [b"%06o blob %s\t%s" % (entry.mode, entry.id.encode(), path) for path, entry in entries_of(repo).items()]
    assert sorted(entries) == sorted(listed)


def test_what_was_checked_out_is_the_tree(repo: Path) -> None:
    assert different(repo) == []
    verify(repo)


def _edited_behind_gits_back(repo: Path) -> None:
    """Same size and time, and git is told not to look."""
    git(repo, "update-index", "--assume-unchanged", "a")
    before = os.stat(repo / "a")
    (repo / "a").write_text("b\n")
    os.utime(repo / "a", ns=(before.st_atime_ns, before.st_mtime_ns))


def _link_instead_of_file(repo: Path) -> None:
    (repo / "a").rename(repo / ".git/a")
    (repo / "a").symlink_to(".git/a")


def _link_instead_of_directory(repo: Path) -> None:
    (repo / "deep/er").rename(repo / ".git/er")
    (repo / "deep/er").symlink_to("../.git/er")


def _file_instead_of_link(repo: Path) -> None:
    (repo / "link").unlink()
    (repo / "link").write_text("a")


def _other_link(repo: Path) -> None:
    (repo / "link").unlink()
    (repo / "link").symlink_to("run")


def _pipe(repo: Path) -> None:
    (repo / "a").unlink()
    os.mkfifo(repo / "a")


def _ignored_file(repo: Path) -> None:
    (repo / ".git/info/exclude").write_text("*\n")
    (repo / "deep/conftest.py").touch()


def _longer_than_it_says(repo: Path) -> None:
    with open(repo / "empty", "w") as out:
        out.write("x")


DIFFERENCES: list[tuple[Callable[[Path], object], list[bytes]]] = [
    (_edited_behind_gits_back, [b"a"]),
    (lambda repo: (repo / "a").unlink(), [b"a"]),
    (lambda repo: (repo / "a").chmod(0o755), [b"a"]),
    (lambda repo: (repo / "run").chmod(0o644), [b"run"]),
    (lambda repo: (repo / "a").chmod(0o600), []),
    (_link_instead_of_file, [b"a"]),
    (_link_instead_of_directory, [b"deep/er", b"deep/er/b"]),
    (_file_instead_of_link, [b"link"]),
    (_other_link, [b"link"]),
    (_pipe, [b"a"]),
    (_ignored_file, [b"deep/conftest.py"]),
    (lambda repo: (repo / "new").mkdir(), [b"new"]),
    (_longer_than_it_says, [b"empty"]),
]


@pytest.mark.parametrize(("change", "names"), DIFFERENCES)
def test_every_difference_is_seen(repo: Path, change: Callable[[Path], object], names: list[bytes]) -> None:
    change(repo)
    assert different(repo) == names
    if names:
        with pytest.raises(MissingBase, match="is not the tree"):
            verify(repo)


@pytest.mark.parametrize("size", range(10))
def test_a_file_that_is_read_in_pieces_is_hashed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(file_hashes, "_CHUNK", 4)
    content = b"0123456789"[:size]
    file, entry = tmp_path / "file", TreeEntry(0o100644, object_id("blob", content, "sha1"))
    for there in (content, content + b"x", content[:-1] + b"x"):
        file.write_bytes(there)
        assert is_same_file(os.fsencode(file), *entry, "sha1") is (there == content)


@pytest.mark.parametrize(("size", "read"), [(0, b"x"), (3, b"0123"), (4, b"01234567"), (6, b"012"), (4, b"")])
def test_a_file_that_changes_while_it_is_read_is_not_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, read: bytes
) -> None:
    monkeypatch.setattr(file_hashes, "_CHUNK", 4)
    entry = TreeEntry(0o100644, object_id("blob", b"01234567"[:size], "sha1"))
    file = tmp_path / "file"
    file.write_bytes(b"01234567"[:size])
    before = os.stat(file)
    file.write_bytes(read)
    monkeypatch.setattr(os, "fstat", lambda handle: before)
    assert not is_same_file(os.fsencode(file), *entry, "sha1")


def test_the_directory_of_a_submodule_is_empty(repo: Path) -> None:
    entry = f"160000,{'1' * 40},deep/sub"
    git(repo, "update-index", "--add", "--cacheinfo", entry)
    git(repo, "commit", "-q", "-m", "submodule")
    assert different(repo) == [b"deep/sub"]
    (repo / "deep/sub").mkdir()
    assert different(repo) == []
    (repo / "deep/sub/x").touch()
    assert different(repo) == [b"deep/sub"]


CONVERTING = ("* eol=crlf", "* ident", "a text working-tree-encoding=UTF-16")


@pytest.mark.parametrize("attributes", CONVERTING)
def test_a_file_that_git_has_converted_is_not_the_tree(repo: Path, attributes: str) -> None:
    (repo / "a").write_bytes(b"$Id$\n")
    commit(repo)
    (repo / ".git/info/attributes").write_text(attributes)
    (repo / "a").unlink()
    git(repo, "checkout", "-f", "HEAD")
    assert (repo / "a").read_bytes() != b"$Id$\n"
    with pytest.raises(MissingBase, match="'a'"):
        verify(repo)


# Objects


def test_an_id_is_the_one_that_git_gives(repo: Path) -> None:
    assert object_id("blob", b"x\n", "sha1") == text(repo, "hash-object", "--stdin", input=b"x\n")
    assert object_id("blob", b"x\n", "sha256") == hashlib.sha256(b"blob 2\0x\n").hexdigest()


def _tree(repo: Path, *names: bytes) -> str:
    blob = bytes.fromhex(text(repo, "rev-parse", "HEAD:a"))
    content = b"".join(b"100644 " + name + b"\0" + blob for name in names)
    return text(repo, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", input=content)


@pytest.mark.parametrize("names", [[b"a/b"], [b".."], [b"."], [b".GIT"], [b""], [b"a", b"a"]])
def test_a_name_that_no_tree_has_is_refused(repo: Path, names: list[bytes]) -> None:
    name = text(repo, "commit-tree", "-m", "odd", _tree(repo, *names))
    with pytest.raises(StoreError, match="invalid path"):
        entries_of(repo, name)


def test_a_replacement_does_not_count(repo: Path) -> None:
    name, before = text(repo, "rev-parse", "HEAD"), entries_of(repo)
    git(repo, "replace", text(repo, "rev-parse", "HEAD:a"), text(repo, "rev-parse", "HEAD:run"))
    git(repo, "replace", name, text(repo, "commit-tree", "-m", "other", _tree(repo, b"other")))
    assert entries_of(repo, name) == before
    verify(repo)


@pytest.mark.parametrize("kind", ["commit", "tree", "blob"])
def test_an_object_under_anothers_name_is_missing(repo: Path, kind: str) -> None:
    """git itself gives it out: it does not hash what it reads."""
    (repo / "run").write_text("changed\n")
    commit(repo)
    names = {"commit": "HEAD", "tree": "HEAD:deep", "blob": "HEAD:a"}
    other = {"commit": "HEAD^", "tree": "HEAD^{tree}", "blob": "HEAD:run"}
    victim, source = text(repo, "rev-parse", names[kind]), text(repo, "rev-parse", other[kind])
    path = repo / ".git/objects" / victim[:2] / victim[2:]
    path.chmod(0o644)
    path.write_bytes((repo / ".git/objects" / source[:2] / source[2:]).read_bytes())
    with object_reader(HostGit(str(repo / ".git")), "sha1") as reader:
        with pytest.raises(MissingBase, match=f"the {kind} {victim} is missing or damaged"):
            reader.read(kind, victim)
        with pytest.raises(MissingBase):
            reader.read(kind, "1" * 40)


def test_a_reader_whose_git_ended_calls_everything_missing(repo: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingBase), object_reader(HostGit(str(tmp_path / "no repository")), "sha1") as reader:
        reader.read("tree", "1" * 40)


# Several processes


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for every two files."""
    monkeypatch.setattr(file_hashes, "_FILES_PER_PROCESS", 2)
    monkeypatch.setattr(file_hashes, "_cores", lambda: 3)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("change", "names"), DIFFERENCES)
def test_every_difference_is_seen_by_any_of_several_processes(
    repo: Path, change: Callable[[Path], object], names: list[bytes]
) -> None:
    change(repo)
    assert different(repo) == names


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("program", ["false", "true", "no such program"])
def test_what_a_process_does_not_do_is_done_here(repo: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr("sys.executable", shutil.which(program) or program)
    assert different(repo) == []
    (repo / "run").write_text("x\n")
    (repo / "a").write_text("x\n")
    assert different(repo) == [b"a", b"run"]


AS_ON_A_HOST = """
import sys
sys.path.insert(0, sys.argv[1])
from agent.trees import file_hashes
file_hashes._FILES_PER_PROCESS, file_hashes._cores, hashed = 2, lambda: 3, file_hashes._entries
done_here = []
def entries(top, files, *more):
    done_here.extend(files)
    return hashed(top, files, *more)
file_hashes._entries = entries
files = [(b"%d" % at, 0o100644, sys.argv[3], False) for at in range(6)]
print(file_hashes.index_entries(sys.argv[2].encode() + b"/", files, "sha1"), len(done_here))
"""


@pytest.mark.parametrize("is_unpacked", [True, False], ids=["unpacked", "in a zip file"])
def test_on_a_host_too_the_processes_do_their_share(tmp_path: Path, is_unpacked: bool) -> None:
    code, tree = tmp_path / "agent.pyz", tmp_path / "tree"
    code.write_bytes(archive.build())
    if is_unpacked:
        zipfile.ZipFile(code).extractall(tmp_path / "code")
        code = tmp_path / "code"
    tree.mkdir()
    for at in range(6):
        (tree / f"{at}").write_bytes(b"hello\n")
    hello = "ce013625030ba8dba906f756967f9e9ca394464a"
    command = [sys.executable, "-I", "-S", "-c", AS_ON_A_HOST, str(code), str(tree), hello]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[b'', b'', b'', b'', b'', b''] 2\n", "this process did two of six"
