"""Single lines of a log."""

from __future__ import annotations

import math
import re

import pytest

from ci_tasks.features.verl.judge import log_patterns as lines


def test_metrics_are_read_as_verl_prints_them_with_old_and_new_numpy() -> None:
    values = lines.metrics(
        "actor/pg_loss:-1.5e-05 - actor/grad_norm:np.float64(0.25) - val-core/openai/gsm8k/acc/mean@1:1 - a:True"
        " - actor/kl_loss:nan - critic/score/max:-inf - broken:1.2.3"
    )
    assert math.isnan(values.pop("actor/kl_loss"))
    assert values == {
        "actor/pg_loss": -1.5e-05,
        "actor/grad_norm": 0.25,
        "val-core/openai/gsm8k/acc/mean@1": 1.0,
        "critic/score/max": -math.inf,
    }


BAR = "Training Progress: {:3d}%|{}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BAR.format(100, "██████████| 1/1 [00:09<00:00,  9.1s/it]"), ("1", "1")),
        (BAR.format(100, "1/1|"), ("1", "1")),
        (BAR.format(0, "          | 0/20 [00:00<?, ?it/s]"), ("0", "20")),
    ],
)
def test_progress_is_read_from_tqdms_bar(text: str, expected: tuple[str, str]) -> None:
    bar = lines.PROGRESS.search(text)
    assert bar is not None and bar.groups() == expected


RESUMES = [
    "Load from checkpoint folder: /c/global_step_7",
    "Setting global step to 7",
    "Resuming from  /c/global_step_7",
]
RESUMES += ["INFO:2025-01-02 03:04:05,678:Resuming from /c/global_step_7, setting global step to 7"]
CONSTRUCTION = [
    ("Enabling LORA with rank=4, alpha=4, dropout=0.0", "LoRA"),
    ("INFO:megatron.bridge.peft.lora:Adding lora to: decoder.layers.0.mlp.linear_fc1", "LoRA"),
    ("Setting up DistributedDataParallel with config DistributedDataParallelConfig(...)", "DDP"),
    ("Setting up FullyShardedDataParallel with config ...", "Megatron-FSDP"),
    (" > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 8192", "model"),
    ("GPTModel contains 494.03M parameters", "model"),
    ("TF config: Qwen2Provider(num_layers=24)", "vanilla"),
]
OTHERS = [
    BAR.format(100, "x| 1/1"), "step:1 - a:1", "{'actor_rollout_ref': {", "Training from scratch", "module: 1",
    "  Adapter parameters:   8,192", "+ python3 -m verl.trainer.main_ppo", "A worker died or was killed",
    "There appear to be 1 leaked shared_memory objects", "DataLoader worker (pid 1) is killed",
]  # fmt: skip


def test_both_of_verls_trainers_say_from_where_they_resume() -> None:
    found = [lines.RESUMED.search(text) for text in RESUMES]
    assert [match and (match[1] or match[2]) for match in found] == ["7"] * 4
    assert not lines.RESUMED.search("save to /c/global_step_7")


def test_what_construction_says_is_known() -> None:
    for text, what in CONSTRUCTION:
        assert [name for name, pattern in lines.CONSTRUCTION.items() if pattern.search(text)] == [what]


def test_every_parsed_line_matches_a_keyword() -> None:
    words = re.compile(lines.WORDS)
    texts = [*OTHERS, *(RESUMES[at] for at in (0, 3)), *(text for text, _ in CONSTRUCTION if not text.startswith(" >"))]
    assert [text for text in texts if not words.search(text.encode())] == []


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\x1b[36m(TaskRunner pid=12, ip=10.0.0.1)\x1b[0m  'a': 1\r\n", ("TaskRunner pid=12, ip=10.0.0.1", " 'a': 1")),
        (b"plain \x07 text", ("", "plain \ufffd text")),
    ],
)
def test_rays_prefix_and_escape_sequences_are_taken_off_a_line(raw: bytes, expected: tuple[str, str]) -> None:
    assert lines.split(lines.plain(raw)) == expected


def test_an_import_of_bridge_that_fails_is_no_construction() -> None:
    frame = '  File "/b/src/megatron/bridge/models/gpt_provider.py", line 5, in {}'
    assert lines.FRAME.search(frame.format("finalize"))
    assert not lines.FRAME.search(frame.format("<module>"))
    assert not lines.FRAME.search(frame.format("safe_import_from"))  # of what may be missing, and is logged
