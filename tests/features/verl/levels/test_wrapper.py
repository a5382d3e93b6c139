"""What verl's wrapper reads: a variable that it does not read is an error that names the nearest."""

from __future__ import annotations

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.verl.levels.wrapper import check, variables

SCRIPT = """\
export LAUNCHED=1
ENGINE=${ENGINE:-"vllm"}
COMMON_TP=${COMMON_TP:-2}
TRAIN_TP=${TRAIN_TP:-$COMMON_TP}
[ -n "$DUMMY_MODEL_CONFIG_PATH" ] || exit 1
lower=${lower:-1}
"""


def refusal(name: str) -> str:
    try:
        check(SCRIPT, [name], "run.sh")
    except UsageError as error:
        return error.message
    return ""


def test_variables_are_those_that_are_read() -> None:
    assert variables(SCRIPT) == {"ENGINE", "COMMON_TP", "TRAIN_TP", "DUMMY_MODEL_CONFIG_PATH"}


@pytest.mark.parametrize("name", ["ENGINE", "COMMON_TP", "NCCL_DEBUG", "HF_HOME", "CUDA_VISIBLE_DEVICES"])
def test_what_the_script_or_its_libraries_read_may_be_set(name: str) -> None:
    assert refusal(name) == ""


@pytest.mark.parametrize(("name", "near"), [("COMON_TP", "COMMON_TP"), ("ENGIN", "ENGINE"), ("LAUNCHED", "")])
def test_what_nobody_reads_is_refused(name: str, near: str) -> None:
    assert refusal(name) == f"run.sh does not read {name}{f'; did you mean {near}?' if near else ''}"
