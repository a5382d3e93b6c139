"""Which Bridge the driver and the workers used."""

from __future__ import annotations

import pytest

from ci_tasks.features.verl.judge.bridge_imports import check_imports
from ci_tasks.features.verl.judge.log_records import PreflightCheck, RunFacts

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


@pytest.mark.parametrize(("driver", "worker", "root", "expected"), CASES)
def test_both_have_to_import_the_checkout(
    driver: tuple[str, str], worker: tuple[str, str], root: str, expected: str
) -> None:
    marks = {
        "import-driver": PreflightCheck("import-driver", *driver, 1),
        "import-worker": PreflightCheck("import-worker", *worker, 2),
    }
    imported = check_imports(RunFacts(marks, {}), root)
    assert ("shown" if imported.shown else "wrong" if imported.wrong else "neither") == expected


def test_what_was_not_checked_is_reported() -> None:
    imported = check_imports(RunFacts({"import-driver": PreflightCheck("import-driver", "pass", LOCAL, 1)}, {}), "/b")
    assert imported.text == f"driver: {LOCAL}; Ray worker not checked"
