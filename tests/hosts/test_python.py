"""Finding a Python among fakes that refuse surprises."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ci_tasks.hosts import python
from ci_tasks.hosts.queries import LocalQueryRunner

Find = Callable[[str, Mapping[str, str]], "str | None"]


@pytest.fixture
def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Find:
    """Finds one among interpreters that print what the mapping says, and returns its place; None for our own."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYENV_ROOT", raising=False)

    def find(version_spec: str, interpreters: Mapping[str, str]) -> str | None:
        for place, prints in interpreters.items():
            path = tmp_path / place
            path.parent.mkdir(parents=True, exist_ok=True)
            quoted = shlex.quote(str(path))
            path.write_text(f'#!/bin/sh\n[ "$1 $2" = "-I -c" ] || exit 99\nprintf "%s " {prints}\necho {quoted}\n')
            if prints == "broken":
                path.write_text(f"#!/bin/sh\necho 3.6.1 {quoted}\nexit 1\n")
            path.chmod(0o755)
        found = python.find_python(version_spec, LocalQueryRunner())
        return None if found == python.OWN else found[0].removeprefix(f"{tmp_path}/")

    return find


PYENV, UV = ".pyenv/versions/{}/bin/python", ".local/share/uv/python/cpython-{}-linux-x86_64-gnu/bin/python3.6"


@pytest.mark.parametrize(
    ("version_spec", "interpreters", "found"),
    [
        *((spec, {"bin/python3.6": "3.6.15"}, "bin/python3.6") for spec in ("3.6", "3.6.15", "3.6.x")),
        ("3.6", {"bin/python3": "3.6.1"}, "bin/python3"),
        ("3.6", {"bin/python3.6": "broken", PYENV.format("3.6.15"): "3.6.15"}, PYENV.format("3.6.15")),
        # 3.6.15 is newer than 3.6.9, though not as text.
        ("3.6", {PYENV.format(each): each for each in ("3.6.9", "3.6.15", "3.6.2")}, PYENV.format("3.6.15")),
        ("3.6.9", {PYENV.format(each): each for each in ("3.6.9", "3.6.15")}, PYENV.format("3.6.9")),
        ("3.6", {UV.format("3.6.15"): "3.6.15"}, UV.format("3.6.15")),
        ("3.6", {"bin/python3.6": "3.7.1"}, None),
        ("3.6", {"bin/python3.6": ""}, None),
        *((spec, {}, None) for spec in ("", "3.6", "2.x", "pypy3.9")),
        *((spec, {"bin/python3": "9.9.9"}, None) for spec in ("3.x", "3", platform.python_version())),
    ],
)
def test_the_newest_python_of_the_version_is_found_else_it_is_our_own(
    find: Find, version_spec: str, interpreters: Mapping[str, str], found: str | None
) -> None:
    assert find(version_spec, interpreters) == found
