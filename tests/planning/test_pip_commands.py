"""What a script's pip commands install, from which index, and the same script with another one."""

from __future__ import annotations

import pytest

from ci_tasks.config import Override, read
from ci_tasks.planning import pip_commands
from ci_tasks.planning.pip_commands import PipInstall, suggested_override, with_index
from ci_tasks.workflow.model import Job, Step
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
    assert pip_commands.pip_installs(script) == installs


@pytest.mark.parametrize(("before", "after"), CASES["an index is replaced where it stands"])
def test_an_index_is_replaced_where_it_stands(before: str, after: str) -> None:
    assert with_index(before, "https://m/simple")[0] == after


def test_the_default_index_is_pips_own_configuration() -> None:
    script, changes = with_index("pip install a --index-url https://a\npip install b -i https://b c\n", "default")
    assert script == "pip install a\npip install b  c\n"
    assert changes == [("--index-url https://a", "pip's own index"), ("-i https://b", "pip's own index")]


# What pip says of a failed install step → the override that helps

JOB = Job(
    "cpu",
    1,
    steps=(
        Step("Torch", 1, run="pip install torch==2.9.1+cu128 --index-url https://download.example/whl"),
        Step("Old", 3, run="pip install numpy==0.1 --index-url https://download.example/whl"),
        Step("Others", 2, run="pip install pytest ray==2.40.0\n"),
    ),
)
NONE = "Could not find a version that satisfies the requirement {} (from versions: none) (log /x/log)"
SOME = "ERROR: Could not find a version that satisfies the requirement {} (from versions: 2.8.0, 2.9.0, 2.9.1, 3.0rc1)"

PROBLEMS: list[tuple[str, Override | None]] = [
    # CI's own index is not reached from here.
    (NONE.format("torch==2.9.1+cu128"), Override("cpu", "Torch", pip_index="default")),
    ("No matching distribution found for torch==2.9.1+cu128", Override("cpu", "Torch", pip_index="default")),
    # Nor for a package that the requirement needs.
    (NONE.format("filelock (from torch)"), Override("cpu", "Torch", pip_index="default")),
    (NONE.format("zipp>=3 (from importlib-metadata>=4->torch==2.9.1)"), Override("cpu", "Torch", pip_index="default")),
    (NONE.format("zipp>=3 (from pytest)"), None),
    # It is reached, but has no such version.
    (SOME.format("torch==2.9.1+cu128"), Override("cpu", "Torch", replace={"torch==2.9.1+cu128": "torch==2.9.1"})),
    (SOME.format("ray==2.40.0"), None),  # no version of that series
    (SOME.format("numpy==0.1"), None),  # and another index is not known to help
    # Nothing that is known to help.
    (NONE.format("pytest"), None),
    (NONE.format("of-a-package-that-no-step-names"), None),
    ("error: command 'gcc' failed", None),
]


@pytest.mark.parametrize(("text", "override"), PROBLEMS)
def test_the_override_that_would_mend_it(text: str, override: Override | None) -> None:
    assert suggested_override(text, JOB, ()) == override


def test_a_step_with_an_override_of_the_person_is_left_to_them() -> None:
    own = (Override("cpu", "Torch", run="pip install torch"),)
    assert suggested_override(NONE.format("torch"), JOB, own) is None


@pytest.mark.parametrize(
    ("requirement", "versions", "other"), CASES["a version that is gone is replaced by the nearest"]
)
def test_version_that_is_gone_is_replaced_by_nearest(requirement: str, versions: list[str], other: str | None) -> None:
    assert pip_commands.replacement(requirement, versions) == other


def test_the_changes_of_one_step_are_one_entry() -> None:
    changes = [
        Override("a", "b", pip_index="default"),
        Override("a", "c", replace={"x": "y"}),
        Override("a", "b", replace={"z": "w"}),
    ]
    assert pip_commands.merged(changes) == [Override("a", "b", pip_index="default", replace={"z": "w"}), changes[1]]


@pytest.mark.parametrize(
    "name",
    ["on", "null", "🚀 Install", "a: b #c", "{a}, [b]", "'\"\\", "a\nb", "\x1b[2J", "\x7f", "\u2028", "é", "~", "1e3"],
)
def test_an_entry_says_what_the_override_is_whatever_a_step_is_called(name: str) -> None:
    override = Override("job", name, pip_index="https://mirror/simple", replace={name: "x"})
    assert read(f"overrides:\n  - {pip_commands.entry(override)}\n").overrides == (override,)
