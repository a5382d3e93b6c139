"""One tree for several runs, on this machine as a site, with real git."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.checkout.snapshot import Snapshot
from ci_tasks.config import HostSpec
from ci_tasks.hosts.executor import Executor, LocalExecutor
from ci_tasks.results.store import Batch
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


def opened(sources: list[Path]) -> Callable[[HostSpec], Executor]:
    """Opens this machine, noting from where it takes its trees."""

    class Noting(LocalExecutor):
        def snapshot(self, batch: Batch, source: Path, **more: Any) -> Snapshot:
            sources.append(source)
            return super().snapshot(batch, source, **more)

    return Noting


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
        executor = pin.wrap(opened([]))(HOST)
        batch = Batch("1", tmp_path / "batch")
        code = executor.snapshot(batch, checkout, rev=None)
        assert code.checkout == pin.checkout
        assert (code.read_file("code.py"), code.read_file("new.py")) == ("as it was\n", None)
        assert (code.checkout.path, code.checkout.dirty) == (str(checkout), ("code.py",))
        assert git(pin.directory, "show", "origin/main:code.py") == "base"
        executor.close()
    assert not pin.directory.exists()


def test_an_unchanged_checkout_is_taken_itself_and_a_branch_that_moves_on_as_it_was(
    checkout: Path, tmp_path: Path
) -> None:
    sources: list[Path] = []
    with pinned(source(checkout), None) as pin:
        executor = pin.wrap(opened(sources))(HOST)
        unchanged = executor.snapshot(Batch("1", tmp_path / "unchanged"), checkout, rev=None)
        assert (unchanged.checkout, sources) == (pin.checkout, [checkout]), "it is taken itself"
        executor.close()
    before = commit(checkout)
    _edit(checkout)
    with pinned(source(checkout, "main"), "main~1") as pin:
        commit(checkout)
        executor = pin.wrap(opened([]))(HOST)
        code = executor.snapshot(Batch("1", tmp_path / "batch"), checkout, rev="main")
        assert (code.checkout.commit, code.read_file("code.py")) == (before, "as it was\n")
        assert git(pin.directory, "show", "origin/main:code.py") == "committed"
        executor.close()
