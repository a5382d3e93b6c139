"""Single lines of a log."""

from __future__ import annotations

import re

from ci_tasks.features.verl.judge import log_patterns as lines

BAR = "Training Progress: {:3d}%|{}"


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
