"""Overlays: which packages of a tree they are, and a checkout with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.agent.records import Overlay
from ci_tasks.checkout.repository import pinned_commit
from ci_tasks.checkout.snapshot import check_distinct, find_modules, materialize, take_snapshot
from ci_tasks.errors import CheckoutError, UsageError
from ci_tasks.given_values import GivenValues, OverlaySource
from tests.checkout.repositories import commit, git, make_repo

MEGATRON_LM = ["setup.py", "megatron/core/__init__.py", "megatron/core/a.py", "megatron/training/x.py", "tests/t.py"]
BRIDGE = ["src/megatron/bridge/__init__.py", "tests/unit/test_a.py"]
PACKAGES = [
    ("sglang", ["python/sglang/__init__.py", "test/a.py"], "python/", ("sglang",)),
    ("transformer-engine", ["transformer_engine/__init__.py"], "", ("transformer_engine",)),
    ("megatron-core", MEGATRON_LM, "", ("megatron.core", "megatron.training")),
    ("Megatron_LM", MEGATRON_LM, "", ("megatron.core", "megatron.training")),
    ("megatron", BRIDGE, "src/", ("megatron.bridge",)),
    ("megatron.bridge", BRIDGE, "src/", ("megatron.bridge",)),
    ("six", ["six.py"], "", ("six",)),
]


@pytest.mark.parametrize(("name", "files", "layout", "modules"), PACKAGES, ids=[case[0] for case in PACKAGES])
def test_a_name_is_that_of_the_import_or_of_the_distribution(
    name: str, files: list[str], layout: str, modules: tuple[str, ...]
) -> None:
    assert find_modules(OverlaySource(name, "/tree"), files) == (layout, modules)


@pytest.mark.parametrize(
    ("name", "files", "hint"),
    [
        ("megatron-core", BRIDGE, "it has megatron, tests"),
        ("sglang", ["python/verl/__init__.py"], "it has verl"),
        ("sglang", ["setup.py"], "it has no Python package in its root, src or python"),
    ],
)
def test_a_tree_without_the_package_names_those_it_has(name: str, files: list[str], hint: str) -> None:
    with pytest.raises(CheckoutError, match="has no Python package") as raised:
        find_modules(OverlaySource(name, "/tree"), files)
    assert raised.value.hint == hint


def test_two_overlays_have_no_package_in_common() -> None:
    lm, fork = (
        Overlay(name=name, path=f"/{name}", modules=modules)
        for name, modules in (("megatron-core", ("megatron.core",)), ("megatron", ("megatron.core", "megatron.rl")))
    )
    check_distinct([lm, Overlay(name="sglang", modules=("sglang",))])
    with pytest.raises(CheckoutError, match=r"--with megatron-core and --with megatron both have .* megatron\.core"):
        check_distinct([lm, fork])


def test_a_workspace_has_the_overlays_as_they_are_now(tmp_path: Path) -> None:
    checkout, spam, plain = make_repo(tmp_path / "repo"), make_repo(tmp_path / "spam"), tmp_path / "plain"
    (spam / "spam").mkdir()
    (spam / "spam/__init__.py").write_text("committed")
    old = commit(spam)
    (spam / "spam/__init__.py").write_text("dirty")
    (spam / "spam/new.py").write_text("untracked")
    (plain / "src/eggs").mkdir(parents=True)
    (plain / "src/eggs/__init__.py").write_text("no git")
    overlays = (OverlaySource("spam", str(spam)), OverlaySource("eggs", str(plain)))

    made = materialize(checkout, tmp_path / "workspace", rev=None, overlays=overlays)

    workspace = tmp_path / "workspace"
    assert (workspace / ".ci-tasks-overlays/spam/spam/__init__.py").read_text() == "dirty"
    assert (workspace / ".ci-tasks-overlays/spam/spam/new.py").read_text() == "untracked"
    assert (workspace / ".ci-tasks-overlays/eggs/src/eggs/__init__.py").read_text() == "no git"
    first, second = made.overlays
    assert (first.head, first.dirty) == (old, ("spam/__init__.py", "spam/new.py"))
    assert (second.directory, second.modules) == (".ci-tasks-overlays/eggs/src", ("eggs",))
    assert made.dirty == () and made.head == git(checkout, "rev-parse", "HEAD")
    assert made.own_tree == git(checkout, "rev-parse", "HEAD^{tree}") != made.tree
    # What hosts are sent is the same tree; and an overlay may be at a revision.
    sent = take_snapshot(checkout, tmp_path / "store", overlays=overlays)
    assert (sent.checkout.tree, sent.checkout.overlays) == (made.tree, made.overlays)
    given = GivenValues(overlays=overlays).with_overlay_at("spam", old)
    materialize(checkout, tmp_path / "older", rev=None, overlays=given.overlays)
    assert (tmp_path / "older/.ci-tasks-overlays/spam/spam/__init__.py").read_text() == "committed"


def test_a_submodule_may_be_at_another_commit_than_its_pin(with_submodule: Path, tmp_path: Path) -> None:
    path = "third party"
    pin = pinned_commit(with_submodule, "HEAD", path)
    library = with_submodule / path
    (library / "new").write_text("newer")
    newer = commit(library)
    git(library, "checkout", "--quiet", pin)
    overlays = (OverlaySource(path, str(library), newer, submodule=path),)

    made = materialize(with_submodule, tmp_path / "workspace", rev="HEAD", overlays=overlays)

    assert (tmp_path / "workspace" / path / "new").read_text() == "newer"
    assert pinned_commit(tmp_path / "workspace", made.commit, path) == newer
    assert made.overlays == () and made.own_tree == git(with_submodule, "rev-parse", "HEAD^{tree}")
    assert not (library / "new").exists() and git(with_submodule, "status", "--porcelain") == ""
    sent = take_snapshot(with_submodule, tmp_path / "store", rev="HEAD", overlays=overlays)
    assert sent.checkout.tree == made.tree and [part.checkout.commit for part in sent.parts] == [made.commit, newer]


@pytest.mark.parametrize(("path", "message"), [("nope", "HEAD has no submodule 'nope'"), ("a", "not checked out")])
def test_a_submodule_that_is_not_there_has_no_pin(with_submodule: Path, path: str, message: str) -> None:
    git(with_submodule, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},a")
    git(with_submodule, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "a link without a tree")
    with pytest.raises(UsageError, match=message):
        pinned_commit(with_submodule, "HEAD", path)
