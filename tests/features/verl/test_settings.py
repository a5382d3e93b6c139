"""Which settings of a baseline make its curves incomparable."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.features.verl.settings import unlike


def settings(**changed: Any) -> dict[str, Any]:
    values = {
        "path": "/root/models/Qwen/Qwen2.5-0.5B", "train": "/data/gsm8k/train.parquet", "batch": 16, "length": 512,
        "seed": 42, "rate": 1e-6, **changed,
    }  # fmt: skip
    return {
        "actor_rollout_ref": {
            "model": {"path": values["path"]},
            "actor": {"optim": {"lr": values["rate"]}, "data_loader_seed": values["seed"]},
            "rollout": {"response_length": values["length"]},
        },
        "data": {"train_files": values["train"], "train_batch_size": values["batch"], "shuffle": True},
    }


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        ({}, []),
        ({"rate": 1e-5}, []),  # it may be the change itself
        ({"path": "/scratch/Qwen/Qwen2.5-0.5B", "train": "/else/gsm8k/train.parquet"}, []),
        ({"path": "/root/models/Qwen/Qwen3-4B"},
         ["actor_rollout_ref.model.path: baseline 'Qwen/Qwen3-4B', here 'Qwen/Qwen2.5-0.5B'"]),
        ({"train": "/data/math/train.parquet"},
         ["data.train_files: baseline 'math/train.parquet', here 'gsm8k/train.parquet'"]),
        ({"batch": 32}, ["data.train_batch_size: baseline 32, here 16"]),
        ({"length": 1024}, ["actor_rollout_ref.rollout.response_length: baseline 1024, here 512"]),
        ({"seed": 1}, ["actor_rollout_ref.actor.data_loader_seed: baseline 1, here 42"]),
    ],
)  # fmt: skip
def test_another_model_data_batch_length_or_seed_is_named(changed: dict[str, Any], lines: list[str]) -> None:
    assert unlike(settings(), settings(**changed)) == lines
