"""Which of several packages of one name a process imports under an overlay; each case is a real process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ci_tasks.agent.evidence import ProcessEvidence, payload, pth, read_evidence
from ci_tasks.agent.records import ProbeOverlay, ProbeRules
from tests.fixtures import cannot

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


def _run(trees: Path, code: str) -> tuple[str, str]:
    """Output and errors of a process with a PYTHONPATH of the job's own; PROBE is the line that loads the probe."""
    overlay = ProbeOverlay(str(trees / "overlay"), ("spam", "ns.core", "alone.part"), str(trees))
    line = pth(str(trees / "evidence"), ProbeRules(overlay.modules, overlays=(overlay,)))
    done = subprocess.run(
        [sys.executable, "-c", code.replace("PROBE", line), str(trees)],
        env={**os.environ, "PYTHONPATH": str(trees / "installed")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize(("before", "code", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_overlay_comes_first(trees: Path, before: str, code: str, expected: str) -> None:
    assert _run(trees, f"{before}\nPROBE\n{code}") == (expected, "")


# Two copies of the package in one process, whichever way the second one came in.
FOREIGN = """
def load(name, tree):
    import importlib.util
    path = sys.argv[1] + f"/{tree}/{name.replace('.', '/')}/__init__.py"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
"""
SEEN = [
    ("a .pth that comes before the probe's", "import spam\nPROBE", {"spam": "installed"}),
    ("a finder in front", f"import sys{FOREIGN}\nPROBE\nload('spam', 'installed')", {"spam": "installed"}),
    (
        "a module of it from elsewhere",
        f"import sys{FOREIGN}\nPROBE\nimport spam; load('spam.sub', 'installed')",
        {"spam": "overlay", "spam.sub": "installed"},
    ),
    (
        "a longer __path__",
        "import sys\nPROBE\nimport spam; spam.__path__.append(sys.argv[1] + '/installed/spam'); import spam.old",
        {"spam": "overlay", "spam.old": "installed"},
    ),
    (
        "what a program generates into its package",
        f"import sys{FOREIGN}\nPROBE\nimport spam; load('spam.sub', 'other'); sys.modules['spam.sub'].__spec__.origin ="
        " '/root/.cache/abc.py'",
        {"spam": "overlay"},
    ),
    ("all from the tree", "PROBE\nimport spam.sub, ns.core", {"spam": "overlay", "ns.core": "overlay"}),
    ("another part of the namespace", "PROBE\nimport ns.core, ns.bridge", {"ns.core": "overlay"}),
]


def _process(trees: Path) -> ProcessEvidence:
    [process] = read_evidence(str(trees / "evidence")).processes
    return process


@pytest.mark.parametrize(("code", "trees_by_module"), [case[1:] for case in SEEN], ids=[case[0] for case in SEEN])
def test_every_module_from_elsewhere_is_noted(trees: Path, code: str, trees_by_module: dict[str, str]) -> None:
    (trees / "other/spam/sub").mkdir(parents=True)
    (trees / "other/spam/sub/__init__.py").write_text("")
    (trees / "installed/spam/old").mkdir()
    (trees / "installed/spam/old/__init__.py").write_text("")
    assert _run(trees, code)[1] == ""
    process = _process(trees)
    seen = {module.name: Path(module.origin).relative_to(trees).parts[0] for module in process.imports}
    assert {name: tree for name, tree in seen.items() if name.startswith(("spam", "ns"))} == trees_by_module


C_SOURCE = r"""
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_c"};
PyMODINIT_FUNC PyInit__c(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def compiled_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module that a C compiler made, as in a wheel."""
    directory = tmp_path_factory.mktemp("compiled")
    (directory / "c.c").write_text(C_SOURCE)
    file = directory / f"_c{sysconfig.get_config_var('EXT_SUFFIX')}"
    include, compiler = f"-I{sysconfig.get_path('include')}", shutil.which("gcc") or cannot("gcc is not installed")
    subprocess.run([compiler, "-shared", "-fPIC", include, "-o", str(file), str(directory / "c.c")], check=True)
    return file


def test_compiled_modules_that_the_tree_lacks_are_the_installed_ones(trees: Path, compiled_module: Path) -> None:
    """Also with its source in the working directory, and where the tree has one that was built for another Python."""
    name = compiled_module.name
    (trees / "source/spam").mkdir(parents=True)
    (trees / "source/spam/__init__.py").write_text("")
    for place in ("installed/spam/sub", "installed/ns/core", "installed/spam", "overlay/spam/sub"):
        (trees / place / name).write_bytes(compiled_module.read_bytes())
    (trees / "overlay/spam/_c.cpython-27m-x86_64-linux-gnu.so").write_text("")
    (trees / "installed/spam/deleted.py").write_text("")
    code = """
import sys; sys.path.insert(0, sys.argv[1] + "/source")
PROBE
import spam._c, spam.sub._c, ns.core._c, importlib.util
print(*(name.__file__.split("/")[-4 if name is not spam._c else -3] for name in (spam._c, spam.sub._c, ns.core._c)))
print(importlib.util.find_spec("spam.deleted"), importlib.util.find_spec("spam.sub.nothing"))
"""
    assert _run(trees, code) == ("installed overlay installed\nNone None", "")
    process = _process(trees)
    taken = {module.name for module in process.imports if module.origin.startswith(str(trees / "installed"))}
    assert {"spam._c", "ns.core._c"} <= taken and "spam.sub._c" not in taken
