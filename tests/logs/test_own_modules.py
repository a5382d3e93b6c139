"""Which missing modules are the code's own: by the checkout, or by the repository's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.logs.job_log import own_modules
from ci_tasks.results.judge_run import modules_lacking


@pytest.mark.parametrize("root", ["", "src", "python"])
def test_a_checkout_lacks_a_module_whose_package_it_has(tmp_path: Path, root: str) -> None:
    package = tmp_path / root / "slime/utils"
    package.mkdir(parents=True)
    (package / "timer.py").touch()
    lacks = modules_lacking(str(tmp_path))
    assert lacks("slime.reward_hub") and lacks("slime.utils.reward_hub")
    assert not lacks("slime.utils.timer"), "it is there, so another installation was imported"
    assert not lacks("slime.utils"), "a package is a module, too"
    assert not lacks("slime.rollout.hub") and not lacks("vllm.utils"), "nothing of it is in the checkout"
    assert not lacks("slime"), "of a package that is not installed at all Python names the first part"


@pytest.mark.parametrize(
    ("repository", "module", "expected"),
    [
        ("THUDM/slime", "slime.utils.reward_hub", True),
        ("THUDM/slime", "slimes.x", False),
        ("NVIDIA-NeMo/Megatron-Bridge", "megatron.bridge.models", True),
        ("NVIDIA-NeMo/Megatron-Bridge", "megatron.core.models", False),
        ("somebody/my-trainer", "my_trainer.x", True),
        ("", "slime.x", False),
    ],
)
def test_a_repository_has_the_modules_of_its_own_package(repository: str, module: str, expected: bool) -> None:
    assert own_modules(repository)(module) == expected
