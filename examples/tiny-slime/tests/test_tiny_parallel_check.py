"""The same training on one GPU and on eight gives the same numbers."""

import math
import tempfile

from tiny_slime.launch import execute_train, write_model

MODEL_NAME = "Tiny-Dense"
NUM_GPUS = 8


def prepare(root):
    return write_model(root, MODEL_NAME)


def execute(model):
    alone = execute_train(model, 1)
    together = execute_train(model, NUM_GPUS)
    for step, (one, many) in enumerate(zip(alone, together, strict=True)):
        for name in one:
            assert math.isclose(one[name], many[name], rel_tol=1e-9, abs_tol=1e-12), f"step {step}: {name}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        execute(prepare(root))
