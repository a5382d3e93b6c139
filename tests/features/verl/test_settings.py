"""Which settings of a baseline make its curves incomparable."""

from __future__ import annotations

import pytest

from ci_tasks.features.verl.settings import unlike

MODEL, FILES, SEED = "actor_rollout_ref.model.path", "data.train_files", "actor_rollout_ref.actor.data_loader_seed"
OURS = {MODEL: "/m/Qwen/Q", FILES: "/d/gsm8k/train.parquet", SEED: 42, "data.train_batch_size": 16, "a.lr": 1}


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("a.lr", 2, ""),  # it may be the change itself
        (MODEL, "/else/Qwen/Q", ""),
        (FILES, "/else/gsm8k/train.parquet", ""),
        (MODEL, "/m/Qwen/Z", "baseline 'Qwen/Z', here 'Qwen/Q'"),
        (FILES, "/d/math/train.parquet", "baseline 'math/train.parquet', here 'gsm8k/train.parquet'"),
        ("data.train_batch_size", 32, "baseline 32, here 16"),
        ("data.max_response_length", 1024, "baseline 1024, here none"),
        (SEED, 1, "baseline 1, here 42"),
    ],
)
def test_another_model_data_batch_length_or_seed_is_named(name: str, value: object, line: str) -> None:
    assert unlike(OURS, {**OURS, name: value}) == ([f"{name}: {line}"] if line else [])
