"""Engines that leave the GPUs to the trainer between rollouts do not change what is trained."""

import json
import tempfile

from tiny_slime.launch import execute_train, write_model

MODEL_NAME = "Tiny-Dense"
NUM_GPUS = 8


def prepare(root):
    model = write_model(root, MODEL_NAME)
    (model / "sglang.json").write_text(json.dumps({"engine_gpus": [4, 4]}))
    return model


def execute(model):
    config = ["--sglang-config", str(model / "sglang.json")]
    assert execute_train(model, NUM_GPUS, *config, "--offload-rollout") == execute_train(model, NUM_GPUS, *config)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        execute(prepare(root))
