"""What verl's wrapper reads: a variable that it does not read is an error that names the nearest."""

from __future__ import annotations

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.verl.levels.wrapper import as_read

SCRIPT = """\
export LAUNCHED=1
ENGINE=${ENGINE:-"vllm"}
COMMON_TP=${COMMON_TP:-2}
TRAIN_TP=${TRAIN_TP:-$COMMON_TP}
[ -n "$DUMMY_MODEL_CONFIG_PATH" ] || exit 1
lower=${lower:-1}
"""


def refusal(name: str, value: str = "1") -> str:
    try:
        as_read(SCRIPT, {name: value}, "run.sh")
    except UsageError as error:
        return error.message
    return ""


@pytest.mark.parametrize(("name", "near"), [("COMON_TP", "COMMON_TP"), ("ENGIN", "ENGINE"), ("LAUNCHED", "")])
def test_what_nobody_reads_is_refused(name: str, near: str) -> None:
    assert refusal(name) == f"run.sh does not read {name}{f'; did you mean {near}?' if near else ''}"


@pytest.mark.parametrize(("name", "off"), [("USE_MEGATRON_FSDP", "False"), ("ROUTING_REPLAY_MODE", "disabled")])
def test_what_turns_off_a_feature_that_this_verl_does_not_know_is_not_asked_of_it(name: str, off: str) -> None:
    assert as_read(SCRIPT, {name: off, "ENGINE": "vllm"}, "run.sh") == {"ENGINE": "vllm"}
    assert refusal(name, "True") == f"run.sh does not read {name}"


def test_a_verl_that_only_has_the_mbridge_library_is_refused_although_the_value_is_false() -> None:
    with pytest.raises(UsageError, match="does not read VANILLA_MBRIDGE") as refused:
        as_read(SCRIPT, {"VANILLA_MBRIDGE": "False"}, "run.sh")
    assert "has no Megatron-Bridge" in refused.value.hint
