"""Whether what the log says of Bridge's files is of the checkout."""

from __future__ import annotations

import pytest

from ci_tasks.features.verl.judge.bridge_imports import check_imports
from ci_tasks.features.verl.judge.log_patterns import BRIDGE
from ci_tasks.features.verl.judge.log_records import DRIVER, WORKER, PreflightCheck, QuotedLine, RunFacts, TrainingFacts


def seen(root: str) -> RunFacts:
    """A driver, a worker and a training that have Bridge from the checkout `root`."""
    text = f"megatron.bridge is {root}/src/megatron/bridge/__init__.py"
    preflight = {key: PreflightCheck(key, "pass", text, 1) for key in (DRIVER, WORKER)}
    paths = {match[1]: QuotedLine(2, text) for match in BRIDGE.finditer(text)}
    assert paths
    return RunFacts(preflight, {"level 0": TrainingFacts("level 0", 2, bridge_paths=paths)})


@pytest.mark.parametrize("root", ["/work/Bridge", "/my work/Bridge", "/a b/c d/runs/Bridge", "/work/my Bridge"])
def test_a_checkout_is_known_though_its_path_has_a_space_and_another_is_not(root: str) -> None:
    assert check_imports(seen(root), root).shown
    wrong = check_imports(seen("/opt/other work/Megatron"), root)
    assert (wrong.shown, wrong.wrong.count("is not under")) == (False, 3), wrong
