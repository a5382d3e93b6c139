"""Engines of different sizes share the GPUs as their configuration file says."""

import json
import tempfile

from tiny_slime.launch import execute_train, write_model

MODEL_NAME = "Tiny-Dense"
NUM_GPUS = 8


def prepare(root):
    model = write_model(root, MODEL_NAME)
    (model / "sglang.json").write_text(json.dumps({"engine_gpus": [4, 2, 1, 1]}))
    return model


def execute(model):
    execute_train(model, NUM_GPUS, "--sglang-config", str(model / "sglang.json"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        execute(prepare(root))
