"""Where our own state and configuration are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks import resources
from tests.parts.cases import named

# What the variable says, None where it is not set.
NAMED = {"set": "/some/where", "empty": "", "not set": None, "no whole path": "some/where"}


@named("named", NAMED)
def test_the_directories_are_those_of_the_xdg_specification(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
        if named is not None:
            monkeypatch.setenv(variable, named)
    is_used = named == "/some/where"
    assert resources.user_directory("state") == Path("/some/where" if is_used else "/home/me/.local/state", "ci-tasks")
    assert resources.user_directory("config") == Path("/some/where" if is_used else "/home/me/.config", "ci-tasks")


def test_a_path_that_was_typed_has_the_home_of_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert resources.user_path("~/x") == Path("/home/me/x")
    assert resources.user_path("x/~") == Path("x/~")
    assert resources.user_path("~no-such-user/x") == Path("~no-such-user/x")


def test_a_variable_of_ours_names_the_directory_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(resources.HOME_ENV, f"{tmp_path}/./runs")
    assert resources.home() == tmp_path / "runs"
