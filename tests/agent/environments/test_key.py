"""The key of an environment: equal for what installs the same, different for what may install something else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci_tasks.agent.environments import command
from ci_tasks.agent.records import InstallStep, InstallSteps

FILES = {
    "requirements.txt": "torch\n-r more/base.txt\n",
    "more/base.txt": "numpy\n",
    "more/requirements.txt": "ray\n",
    "setup.py": "open('requirements.txt')\n",
    "pyproject.toml": "[project]\n",
    "scripts/install.sh": "pip install -r scripts/extra.txt\n",
    "scripts/extra.txt": "ray\n",
    "train.py": "print()\n",
}
PLAIN = "pip install torch"
ENVIRON = {"HOME": "/nowhere", "PATH": "/bin"}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return checkout(tmp_path / "a", FILES)


def checkout(path: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def key_of(
    workspace: Path, text: str = PLAIN, environ: Mapping[str, str] = ENVIRON, env: tuple[str, ...] = (), **step: str
) -> str:
    return command.environment_key(InstallSteps("/store", (InstallStep(text, **step),), env), str(workspace), environ)  # type: ignore[arg-type]


def test_another_checkout_of_another_label_has_the_same_key(workspace: Path, tmp_path: Path) -> None:
    other = checkout(tmp_path / "b", {**FILES, "train.py": "print('changed')\n"})
    for text in (PLAIN, "pip install -r requirements.txt", "cd $GITHUB_WORKSPACE && pip install -e ."):
        assert key_of(workspace, text) == key_of(other, text)


@pytest.mark.parametrize(
    "environ",
    [
        {**ENVIRON, "PIP_INDEX_URL": "https://other"},
        {**ENVIRON, "PIP_CONFIG_FILE": "{workspace}/pip.conf"},
        {**ENVIRON, "HOME": "{workspace}/home"},
    ],
)
def test_another_index_has_another_key(workspace: Path, environ: dict[str, str]) -> None:
    checkout(workspace, {"pip.conf": "[global]\nindex-url = https://a\n", "home/.config/pip/pip.conf": "[global]\n"})
    environ = {name: value.format(workspace=workspace) for name, value in environ.items()}
    assert key_of(workspace) != key_of(workspace, environ=environ)


def test_another_python_has_another_key(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(workspace)
    monkeypatch.setattr(sys, "version", "3.9.18 (main) [GCC]")
    assert key_of(workspace) != before


def test_other_steps_variables_and_directories_have_other_keys(workspace: Path) -> None:
    different = {
        key_of(workspace),
        key_of(workspace, PLAIN + " numpy"),
        key_of(workspace, env=("CUDA=1",)),
        key_of(workspace, directory="more"),
    }
    assert len(different) == 4
    assert key_of(workspace, environ={**ENVIRON, "LANG": "C"}) == key_of(workspace), "what pip does not read"


DESCRIBED = ["more/requirements.txt", "pyproject.toml", "requirements.txt", "setup.py"]
NAMED = {
    "pip install torch": [],
    'pip install -r "${GITHUB_WORKSPACE}/more/base.txt"': ["more/base.txt"],
    "bash ./scripts/install.sh": ["scripts/install.sh"],
    "pip install ../../etc/passwd /etc/passwd no-such-file": [],
}


@pytest.mark.parametrize("text", NAMED)
def test_what_describes_packages_and_what_a_step_names_decides_what_it_installs(workspace: Path, text: str) -> None:
    found = command.deciding_files(InstallSteps("/store", (InstallStep(text),)), str(workspace))
    assert sorted(found) == sorted(DESCRIBED + NAMED[text])


def test_a_changed_file_that_describes_packages_has_another_key(workspace: Path) -> None:
    before = key_of(workspace)
    (workspace / "more/requirements.txt").write_text("numpy==2\n")
    assert key_of(workspace) != before
