"""Which of several packages of one name a process imports under an overlay; each case is a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci_tasks.agent.probe.install import payload, pth
from ci_tasks.agent.records import ProbeOverlay, ProbeRules

EDITABLE = """
import sys, importlib.util
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "spam":
            return importlib.util.spec_from_file_location(name, sys.argv[1] + "/installed/spam/__init__.py")
sys.meta_path.insert(0, Finder) if FIRST else sys.meta_path.append(Finder)
"""
CASES = [
    ("an installed package", "", "import spam; print(spam.V)", "overlay"),
    ("an editable install's finder", EDITABLE.replace("FIRST", "True"), "import spam; print(spam.V)", "overlay"),
    ("its submodules", "", "import spam.sub; print(spam.sub.V)", "overlay"),
    ("a part of a namespace", "", "import ns.core; print(ns.core.V)", "overlay"),
    ("another part of it", "", "import ns.core, ns.bridge; print(ns.bridge.V)", "installed"),
    ("the other part first", "", "import ns.bridge, ns.core; print(ns.core.V)", "overlay"),
    ("a namespace that only the tree has", "", "import alone.part; print(alone.part.V)", "overlay"),
    ("what the tree has not", "", "import other; print(other.V)", "installed"),
]


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    for tree, names in {
        "installed": ("spam", "spam/sub", "ns/core", "ns/bridge", "other"),
        "overlay": ("spam", "spam/sub", "ns/core", "alone/part"),
    }.items():
        for name in names:
            (tmp_path / tree / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / tree / name / "__init__.py").write_text(f"V = {tree!r}\n")
    (tmp_path / "evidence").mkdir()
    (tmp_path / "installed/ci_tasks_probe.py").write_text(payload())
    return tmp_path


@pytest.mark.parametrize(("before", "code", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_overlay_comes_first(trees: Path, before: str, code: str, expected: str) -> None:
    overlay = ProbeOverlay(str(trees / "overlay"), ("spam", "ns.core", "alone.part"), str(trees))
    line = pth(str(trees / "evidence"), ProbeRules(overlays=(overlay,)))
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{line}\n{code}", str(trees)],
        env={**os.environ, "PYTHONPATH": str(trees / "installed")},  # a PYTHONPATH of the job's own
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.strip(), done.stderr) == (expected, "")
