"""git as a program (`ci_tasks.agent.git`): its errors in words, and nothing of the caller's repository."""

from __future__ import annotations

import gc
import os
import subprocess
from pathlib import Path

import pytest

from ci_tasks.checkout.repository import CheckoutGit, GitError, open_repository, user_excludes
from ci_tasks.errors import Blocked, CheckoutError


def fake(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (directory / "bin").mkdir()
    (directory / "bin/git").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", str(directory / "bin"), prepend=os.pathsep)


def test_what_git_says_no_to_is_an_error_with_gits_own_words_and_the_directory(repo: Path) -> None:
    with pytest.raises(GitError, match=f"git rev-parse in {repo}: fatal: .*unknown revision"):
        CheckoutGit(repo / ".git", repo).text("rev-parse", "nothing")
    with pytest.raises(GitError, match=r"git cat-file in .*: fatal: Not a valid object name nothing"):
        list(CheckoutGit(repo / ".git", repo).stream("cat-file", "blob", "nothing"))
    assert CheckoutGit(repo / ".git", repo).text_or_none("rev-parse", "--verify", "--quiet", "nothing") is None


def test_a_machine_without_git_says_how_to_get_it(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/empty")
    git = CheckoutGit(repo / ".git", repo)
    for ask in (lambda: git.text("status"), lambda: list(git.stream("status"))):
        with pytest.raises(CheckoutError, match=r"git cannot be run: .*No such file") as caught:
            ask()
        assert "apt-get install git" in caught.value.hint
    with pytest.raises(CheckoutError, match="there is no directory"):
        CheckoutGit(repo / ".git", repo / "nowhere").text("status")


def test_a_full_disk_is_not_the_checkouts_fault(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "echo 'fatal: write error: No space left on device' >&2; exit 128")
    with pytest.raises(Blocked, match=f"git checkout in {repo}: fatal: write error: No space left") as caught:
        CheckoutGit(repo / ".git", repo).text_or_none("checkout")
    assert "CI_TASKS_HOME" in caught.value.hint and "disk is full" in caught.value.hint


def test_a_git_that_does_not_answer_is_ended(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "exec sleep 1000")
    monkeypatch.setattr(CheckoutGit, "timeout", 0.6)
    with pytest.raises(CheckoutError, match=r"git add in .* did not answer within 0.6 s"):
        CheckoutGit(repo / ".git").run("add")


def test_of_the_callers_environment_nothing_about_a_repository_or_a_configuration_stays(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside of a git hook these are set, and would point every command at the hook's repository."""
    local = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True)
    for name in [*local.stdout.split(), "GIT_SSH_COMMAND"]:
        monkeypatch.setenv(name, "set")
    assert "set" not in CheckoutGit(repo / ".git").env.values()
    users = CheckoutGit(repo / ".git").with_user_settings().env
    of_user = {"GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS", "GIT_SSH_COMMAND"}
    assert {name for name, value in users.items() if value == "set"} == of_user


def test_only_what_asks_for_the_users_own_configuration_has_it(repo: Path, own_home: Path) -> None:
    own_home.write_text("[core]\n\tautocrlf = true\n\texcludesFile = ~/mine\n")
    subprocess.run(["git", "config", "core.excludesFile", "theirs"], cwd=repo, check=True)
    assert user_excludes().endswith("/mine")
    assert CheckoutGit(repo / ".git").text_or_none("config", "core.autocrlf") is None
    assert CheckoutGit(repo / ".git").with_user_settings().text_or_none("config", "core.autocrlf") == "true"


def test_the_directory_through_which_a_repository_is_read_goes_with_it(
    with_submodule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "tmp"
    own.mkdir()
    monkeypatch.setenv("TMPDIR", str(own))
    repository = open_repository(with_submodule)
    assert repository.git.text("rev-parse", "HEAD^{commit}")
    assert [path.stat().st_mode & 0o777 for path in own.iterdir()] == [0o700], "TMPDIR may be everybody's"
    del repository
    gc.collect()
    assert os.listdir(own) == []
    monkeypatch.setenv("TMPDIR", str(own / "gone"))  # as after the end of a Slurm job
    assert open_repository(with_submodule).git.text("rev-parse", "HEAD^{commit}")
    assert (with_submodule / ".git/refs/heads/main").exists()
