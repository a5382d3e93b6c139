"""One tree for several runs, on this machine as a site, with real git."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.trials.runner import pinned
from ci_tasks.workflow.model import Workflow
from tests.parts.git import git, repository

HOST = HostSpec("here", runtime="none")


def commit(checkout: Path) -> str:
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message=more")
    return git(checkout, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with an uncommitted edit, on a main that origin/main lags behind."""
    path = repository(tmp_path / "it's a checkout", {"code.py": "base\n"})
    git(path, "update-ref", "refs/remotes/origin/main", "HEAD")
    (path / "code.py").write_text("committed\n")
    commit(path)
    (path / "code.py").write_text("as it was\n")
    return path


def source(checkout: Path, rev: str | None = None) -> CheckoutSource:
    return CheckoutSource(checkout, "here", Workflow("pr-test.yml", "PR Test", {}), rev=rev)


def _edit(checkout: Path) -> None:
    (checkout / "code.py").write_text("edited since\n")
    (checkout / "new.py").write_text("new\n")


def _commit(checkout: Path) -> None:
    commit(checkout)  # the very tree, but another commit, which a job can see


def _throw_away(checkout: Path) -> None:
    git(checkout, "reset", "--quiet", "--hard", "origin/main")


@pytest.mark.parametrize("happens", [_edit, _commit, _throw_away])
def test_what_happens_to_the_checkout_meanwhile_does_not_matter(
    happens: Callable[[Path], None], checkout: Path, tmp_path: Path
) -> None:
    with pinned(source(checkout), None) as pin:
        happens(checkout)
        code = pin.take(checkout, None)
        assert code.checkout == pin.checkout
        assert (code.read_file("code.py"), code.read_file("new.py")) == ("as it was\n", None)
        assert (code.checkout.path, code.checkout.dirty) == (str(checkout), ("code.py",))
        assert git(pin.directory, "show", "origin/main:code.py") == "base"
    assert not pin.directory.exists()


def test_an_unchanged_checkout_is_taken_itself_and_a_branch_that_moves_on_as_it_was(
    checkout: Path, tmp_path: Path
) -> None:
    with pinned(source(checkout), None) as pin:
        unchanged = pin.take(checkout, None)
        assert (unchanged.checkout, unchanged.checkout.path) == (pin.checkout, str(checkout)), "it is taken itself"
    before = commit(checkout)
    _edit(checkout)
    with pinned(source(checkout, "main"), "main~1") as pin:
        commit(checkout)
        code = pin.take(checkout, "main")
        assert (code.checkout.commit, code.read_file("code.py")) == (before, "as it was\n")
        assert git(pin.directory, "show", "origin/main:code.py") == "committed"
