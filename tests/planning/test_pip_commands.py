"""What a script's pip commands install, from which index, and the same script with another one."""

from __future__ import annotations

import pytest

from ci_tasks.planning.pip_commands import PipInstall, pip_installs, with_index
from tests.parts.cases import cases

CASES = cases("planning/data/pip-commands.yaml")

SCRIPTS: list[tuple[str, list[PipInstall]]] = [
    ("pip install torch", [PipInstall((), ("torch",))]),
    ("pip install torch --index-url https://a/b\n", [PipInstall(("--index-url", "https://a/b"), ("torch",))]),
    ("python -m pip install -i https://a 'torch>=2,<3'", [PipInstall(("-i", "https://a"), ("torch>=2,<3",))]),
    ("uv pip install --index-url=https://a x", [PipInstall(("--index-url", "https://a"), ("x",))]),
    ("pip3 install --extra-index-url https://a x==1", [PipInstall(("--extra-index-url", "https://a"), ("x==1",))]),
    # Several commands, over several lines, and what is no requirement of theirs.
    ("pip install a \\\n  b && pip install -U c; echo d | cat", [PipInstall((), ("a", "b")), PipInstall((), ("c",))]),
    ("cd x && pip install -e . --no-deps", [PipInstall((), ())]),
    ("pip install -r requirements.txt -c limits.txt a[b] # d", [PipInstall((), ("a[b]",))]),
    ("bash -lc 'pip install -e . --no-deps\n x'", [PipInstall((), ())]),
    ("bash -c 'pip install a'", [PipInstall((), ("a",))]),
    ("pip install ${{ matrix.package }} $X ./y z 2>&1", [PipInstall((), ("z",))]),
    ("pip config list\nnpm install x\n", []),
]


@pytest.mark.parametrize(("script", "installs"), SCRIPTS, ids=[script for script, _ in SCRIPTS])
def test_the_pip_commands_of_a_script(script: str, installs: list[PipInstall]) -> None:
    assert pip_installs(script) == installs


@pytest.mark.parametrize(("before", "after"), CASES["an index is replaced where it stands"])
def test_an_index_is_replaced_where_it_stands(before: str, after: str) -> None:
    assert with_index(before, "https://m/simple")[0] == after


def test_the_default_index_is_pips_own_configuration() -> None:
    script, changes = with_index("pip install a --index-url https://a\npip install b -i https://b c\n", "default")
    assert script == "pip install a\npip install b  c\n"
    assert changes == [("--index-url https://a", "pip's own index"), ("-i https://b", "pip's own index")]
