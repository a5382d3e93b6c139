"""git as a program: its errors in words, and nothing of the caller's repository."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ci_tasks.checkout.git import Git, GitError
from ci_tasks.errors import Blocked, CheckoutError


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    path = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", "-b", "main", path], check=True)
    return path


def test_it_returns_what_git_prints_without_the_last_newline(repo: Path) -> None:
    assert Git(repo).text("rev-parse", "--is-inside-work-tree") == "true"


def test_what_git_says_no_to_is_an_error_with_gits_own_words_and_the_directory(repo: Path) -> None:
    with pytest.raises(GitError, match="unknown revision") as caught:
        Git(repo).text("rev-parse", "nothing")
    assert str(repo) in caught.value.message


def test_a_question_whose_answer_is_no_gives_none(repo: Path) -> None:
    assert Git(repo).text_or_none("rev-parse", "--verify", "--quiet", "HEAD") is None


def test_what_git_prints_can_be_had_as_it_comes(repo: Path) -> None:
    (repo / "large").write_bytes(b"x" * 1_000_000)
    name = Git(repo).text("hash-object", "-w", "large")
    chunks = list(Git(repo).stream("cat-file", "--batch", input=f"{name}\n".encode()))
    assert len(chunks) > 1
    assert b"".join(chunks) == f"{name} blob 1000000\n".encode() + b"x" * 1_000_000 + b"\n"


def test_a_stream_that_git_breaks_off_is_an_error_at_its_end(repo: Path) -> None:
    with pytest.raises(GitError, match=r"git cat-file in .*: fatal: Not a valid object name nothing"):
        list(Git(repo).stream("cat-file", "blob", "nothing"))


@pytest.mark.parametrize("command", [Git.run, Git.stream])
def test_a_missing_git_is_said_however_it_was_to_be_read(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Iterable[object]]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(CheckoutError, match="git is not installed"):
        list(command(Git(repo), "status"))


def test_a_machine_without_git_says_how_to_get_it(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(CheckoutError, match="git is not installed") as caught:
        Git(repo).text("status")
    assert "apt-get install git" in caught.value.hint


@pytest.mark.parametrize("message", ["No space left on device", "sha1 file write error. Out of diskspace"])
def test_a_full_disk_is_blocked_and_not_the_checkouts_fault(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho 'error: unable to write file a' >&2; echo 'fatal: {message}' >&2; exit 128\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    with pytest.raises(Blocked, match=f"fatal: {message}") as caught:
        Git(repo).text_or_none("-c", "core.x=y", "checkout")
    assert caught.value.message.startswith(f"git checkout in {repo}: ")
    assert "CI_TASKS_HOME" in caught.value.hint
    assert "unable to write file" not in caught.value.message
    assert "disk is full" in caught.value.hint


def test_a_missing_directory_is_not_taken_for_a_missing_git(tmp_path: Path) -> None:
    with pytest.raises(CheckoutError, match="there is no directory"):
        Git(tmp_path / "nowhere").text("status")


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckoutError, match="is not a directory"):
        Git(tmp_path / "file").text("status")


@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"])
def test_the_callers_repository_is_not_ours(repo: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Inside of a git hook these are set, and would point every command at the hook's repository."""
    monkeypatch.setenv(name, "/elsewhere")
    assert name not in Git(repo).env
    assert Git(repo).toplevel() == repo


def test_every_variable_that_git_itself_calls_local_is_dropped_but_for_configuration(repo: Path) -> None:
    local = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True)
    kept = {"GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS"}
    before = dict(os.environ)
    try:
        os.environ.update(dict.fromkeys(local.stdout.split(), "set"))
        assert set(local.stdout.split()) & set(Git(repo).env) == kept
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_a_neutral_git_knows_nothing_of_the_users_configuration(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "gitconfig").write_text("[core]\n\tautocrlf = true\n")
    assert Git(repo).text_or_none("config", "core.autocrlf") == "true"
    assert Git(repo, neutral=True).text_or_none("config", "core.autocrlf") is None


def test_a_directory_without_a_repository_has_no_top(tmp_path: Path) -> None:
    assert Git(tmp_path).toplevel() is None


def test_a_repository_that_git_refuses_to_read_is_not_taken_for_none(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own switch: as if another user owned it
    with pytest.raises(GitError, match="dubious ownership"):
        Git(repo).toplevel()


def test_names_are_split_at_nul_and_keep_bytes_that_are_no_text(repo: Path) -> None:
    odd = b"a\xff\nb"
    Path(os.fsdecode(os.path.join(os.fsencode(repo), odd))).touch()
    assert [os.fsencode(name) for name in Git(repo).null_separated("ls-files", "--others", "-z")] == [odd]
