"""Mixture of experts with the engines' routing replayed; without the replay the log-probability check would fail."""

import os
import tempfile

from tiny_slime.launch import execute_train, write_model

ENABLE_EVAL = bool(int(os.environ.get("TINY_TEST_ENABLE_EVAL", "1")))
MODEL_NAME = "Tiny-MoE-8x1"
NUM_GPUS = 8


def prepare(root):
    return write_model(root, MODEL_NAME, experts=8)


def execute(model):
    eval_args = ["--eval-interval", "1"] if ENABLE_EVAL else []
    execute_train(model, NUM_GPUS, "--use-rollout-routing-replay", *eval_args)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        execute(prepare(root))
