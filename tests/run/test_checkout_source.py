"""Which checkout is meant where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks import resources
from ci_tasks.errors import CheckoutError
from ci_tasks.run.checkout_source import REPO_ENV, SAMPLE, find_checkout, open_source

OTHER_PROJECT = ".github/workflows/gpu.yml"
SLIME = ".github/workflows/pr-test.yml"


def test_a_directory_without_workflows_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckoutError) as caught:
        open_source(str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path} has no workflow in .github/workflows\n")


@pytest.mark.parametrize(
    ("files", "cwd", "found"),
    [
        # A suite knows the workflow of the current directory, or of one above it.
        ([f"a/{SLIME}"], "a", "a"),
        ([f"a/{SLIME}", "a/tests/x"], "a/tests", "a"),
        # Nothing here is a checkout: the sibling, else the sample.
        (["a/x", f"slime/{SLIME}"], "a", "slime"),
        (["a/x"], "a", SAMPLE),
        # In another project's checkout no sibling is tested instead.
        ([f"a/{OTHER_PROJECT}", f"slime/{SLIME}"], "a", "a"),
    ],
)
def test_the_current_directory_comes_before_a_sibling(
    files: list[str], cwd: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.delenv(REPO_ENV, raising=False)
    monkeypatch.chdir(tmp_path / cwd)
    assert find_checkout(None)[0] == (resources.path(SAMPLE) if found == SAMPLE else tmp_path / found)


def test_a_clone_of_ours_has_workflows_and_is_no_checkout_to_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPO_ENV, raising=False)
    monkeypatch.chdir(resources.path(SAMPLE).parent)
    assert find_checkout(None)[0] != resources.path(SAMPLE).parent.parent
