"""What install steps made is put back as they left it, whatever rows did to it, or the difference is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_tasks.agent.environments.store import StoredEnvironment
from ci_tasks.agent.setup_copy import make_copy, restore_copy
from ci_tasks.agent.setup_manifest import ENVIRONMENT, SetupChanged, check_setup

FILES = ("venv/lib/module.py", "venv/bin/tool", "workspace/test.py", "workspace/.git/config", "ready")


@pytest.fixture
def setup(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("honest\n")
    (tmp_path / "venv/bin/tool").chmod(0o755)
    (tmp_path / "venv/lib/link").symlink_to("module.py")
    make_copy(str(tmp_path))
    return tmp_path


def content(setup: Path) -> dict[str, tuple[int, str]]:
    paths = [path for name in ("venv", "workspace") for path in (setup / name).rglob("*")] + [setup / "ready"]
    return {
        str(path.relative_to(setup)): (path.lstat().st_mode, os.readlink(path) if path.is_symlink() else "")
        for path in paths
    }


@pytest.mark.parametrize(
    "use",
    [
        lambda setup: (setup / "workspace/result.txt").write_text("of the first repetition\n"),
        lambda setup: (setup / "workspace/.git/hooks").write_text("forged\n"),
        lambda setup: (setup / "venv/lib/sitecustomize.py").touch(),
        lambda setup: (setup / "venv/lib/module.py").unlink(),
        lambda setup: (setup / "venv/bin/tool").chmod(0o600),
        lambda setup: shutil.rmtree(setup / "workspace"),
        lambda setup: [(setup / name).write_text("forged\n") for name in FILES],
    ],
)
def test_a_repetition_begins_with_what_the_install_steps_left(setup: Path, use: Callable[[Path], object]) -> None:
    before = content(setup)
    for _ in range(2):
        use(setup)
        restore_copy(str(setup))
        assert content(setup) == before
        assert {(setup / name).read_text() for name in FILES} == {"honest\n"}
        check_setup(str(setup))


@pytest.mark.parametrize("name", ["venv/lib/new.py", "venv/lib/module.py", "workspace/.git/config", "ready"])
def test_a_copy_that_is_not_as_it_was_is_not_used(setup: Path, name: str) -> None:
    (setup / "copy" / name).write_text("forged\n")
    with pytest.raises(SetupChanged, match=rf"not as it was: 1 file differs \(copy/{name}\)"):
        restore_copy(str(setup))


@pytest.mark.parametrize("part", ["copy", "copy.manifest"])
def test_without_a_copy_there_is_nothing_to_restore(setup: Path, part: str) -> None:
    os.rename(setup / part, setup / "elsewhere")
    with pytest.raises(SetupChanged, match="there is no copy"):
        restore_copy(str(setup))


def test_what_was_changed_before_it_is_copied_is_an_error(setup: Path) -> None:
    (setup / "venv/lib/module.py").write_text("forged\n")
    with pytest.raises(SetupChanged, match=r"1 file differs \(venv/lib/module.py\)"):
        make_copy(str(setup))


def test_packages_below_the_venv_are_in_use_as_long_as_the_copy_is_there(setup: Path, tmp_path: Path) -> None:
    environment = StoredEnvironment(str(tmp_path / "stored"))
    (tmp_path / "stored/users").mkdir(parents=True)
    (setup / ENVIRONMENT).symlink_to(environment.path)
    (setup / "environment.manifest").unlink()  # the link is there before the first check
    make_copy(str(setup))
    assert environment.users() == [str(setup / "copy/venv")]
