"""git as a program: its errors in words, and nothing of the caller's repository."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ci_tasks.checkout.git import Git, GitError, user_setting
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
    assert Git(repo / ".git", repo).text("rev-parse", "--git-dir") == str(repo / ".git")


def test_what_git_says_no_to_is_an_error_with_gits_own_words_and_the_directory(repo: Path) -> None:
    with pytest.raises(GitError, match="unknown revision") as caught:
        Git(repo / ".git", repo).text("rev-parse", "nothing")
    assert str(repo) in caught.value.message


def test_a_question_whose_answer_is_no_gives_none(repo: Path) -> None:
    assert Git(repo / ".git", repo).text_or_none("rev-parse", "--verify", "--quiet", "HEAD") is None


def test_what_git_prints_can_be_had_as_it_comes(repo: Path) -> None:
    (repo / "large").write_bytes(b"x" * 1_000_000)
    name = Git(repo / ".git", repo).text("hash-object", "-w", "large")
    chunks = list(Git(repo / ".git", repo).stream("cat-file", "--batch", input=f"{name}\n".encode()))
    assert len(chunks) > 1
    assert b"".join(chunks) == f"{name} blob 1000000\n".encode() + b"x" * 1_000_000 + b"\n"


def test_a_stream_that_git_breaks_off_is_an_error_at_its_end(repo: Path) -> None:
    with pytest.raises(GitError, match=r"git cat-file in .*: fatal: Not a valid object name nothing"):
        list(Git(repo / ".git", repo).stream("cat-file", "blob", "nothing"))


@pytest.mark.parametrize("command", [Git.run, Git.stream])
def test_a_missing_git_is_said_however_it_was_to_be_read(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Iterable[object]]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(CheckoutError, match="git is not installed"):
        list(command(Git(repo / ".git", repo), "status"))


def test_a_machine_without_git_says_how_to_get_it(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(CheckoutError, match="git is not installed") as caught:
        Git(repo / ".git", repo).text("status")
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
        Git(repo / ".git", repo).text_or_none("checkout")
    assert caught.value.message.startswith(f"git checkout in {repo}: ")
    assert "CI_TASKS_HOME" in caught.value.hint
    assert "unable to write file" not in caught.value.message
    assert "disk is full" in caught.value.hint


def test_a_missing_directory_is_not_taken_for_a_missing_git(repo: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckoutError, match="there is no directory"):
        Git(repo / ".git", tmp_path / "nowhere").text("status")


def test_a_file_is_not_a_directory(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckoutError, match="is not a directory"):
        Git(repo / ".git", tmp_path / "file").text("status")


def test_of_the_callers_environment_nothing_about_a_repository_or_a_configuration_stays(repo: Path) -> None:
    """Inside of a git hook these are set, and would point every command at the hook's repository."""
    local = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True)
    before = dict(os.environ)
    try:
        os.environ.update(dict.fromkeys([*local.stdout.split(), "GIT_SSH_COMMAND"], "set"))
        plain = Git(repo / ".git")
        users = Git(repo / ".git", user_settings=True)
    finally:
        os.environ.clear()
        os.environ.update(before)
    of_user = {"GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS", "GIT_SSH_COMMAND"}
    assert "set" not in plain.env.values()
    assert {name for name, value in users.env.items() if value == "set"} == of_user


def test_only_what_asks_for_the_users_own_configuration_has_it(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "gitconfig").write_text("[core]\n\tautocrlf = true\n[user]\n\tname = Ann\n")
    assert Git(repo / ".git").text_or_none("config", "core.autocrlf") is None
    assert Git(repo / ".git", user_settings=True).text_or_none("config", "core.autocrlf") == "true"
    subprocess.run(["git", "config", "user.name", "Checkout"], cwd=repo, check=True)
    assert user_setting("user.name") == "Ann"


@pytest.mark.parametrize("command", [Git.run, Git.stream])
def test_a_git_that_does_not_answer_is_ended_with_a_message(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Iterable[object]]
) -> None:
    fake = tmp_path / "bin/git"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexec sleep 1000\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    monkeypatch.setattr("ci_tasks.checkout.git.TIMEOUT_S", 0.6)
    with pytest.raises(CheckoutError, match=r"git add in .* did not answer within 0.01 minutes"):
        list(command(Git(repo / ".git"), "add"))


def test_names_are_split_at_nul_and_keep_bytes_that_are_no_text(repo: Path) -> None:
    odd = b"a\xff\nb"
    Path(os.fsdecode(os.path.join(os.fsencode(repo), odd))).touch()
    assert [os.fsencode(name) for name in Git(repo / ".git", repo).null_separated("ls-files", "--others", "-z")] == [
        odd
    ]
