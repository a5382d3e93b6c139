"""Which Bridge the driver and the workers used."""

from __future__ import annotations

import pytest

from ci_tasks.judge.verl.facts import Mark, RunFacts
from ci_tasks.judge.verl.imports import imports

LOCAL = "/b/src/megatron/bridge/__init__.py"
INSTALLED = "/usr/lib/python3/site-packages/megatron/bridge/__init__.py"
# Driver and worker as the preflight marks them, the root, and whether that is shown, wrong, or neither.
CASES = [
    (("pass", LOCAL), ("pass", LOCAL), "/b", "shown"),
    (("pass", LOCAL), ("pass", LOCAL), "/b/", "shown"),
    (("pass", LOCAL), ("pass", LOCAL), "", "shown"),
    (("pass", LOCAL), ("pass", LOCAL), "/other", "wrong"),
    (("pass", LOCAL), ("pass", INSTALLED), "", "wrong"),
    (("pass", INSTALLED), ("pass", LOCAL), "", "wrong"),
    (("pass", LOCAL), ("fail", "ModuleNotFoundError: No module named 'megatron.bridge'"), "/b", "wrong"),
    (("pass", LOCAL), ("blocked", "Ray did not start"), "/b", "neither"),
    (("pass", LOCAL), ("skipped", "no Ray"), "/b", "neither"),
]


@pytest.mark.parametrize(("driver", "worker", "root", "found"), CASES)
def test_both_have_to_import_the_checkout(
    driver: tuple[str, str], worker: tuple[str, str], root: str, found: str
) -> None:
    marks = {"import-driver": Mark("import-driver", *driver, 1), "import-worker": Mark("import-worker", *worker, 2)}
    imported = imports(RunFacts(marks, {}), root)
    assert ("shown" if imported.shown else "wrong" if imported.wrong else "neither") == found


def test_what_was_not_looked_at_is_said() -> None:
    imported = imports(RunFacts({"import-driver": Mark("import-driver", "pass", LOCAL, 1)}, {}), "/b")
    assert imported.text == f"driver: {LOCAL}; Ray worker not checked"
