import os
import tempfile

from tiny_slime.launch import execute_train, write_model

ENABLE_EVAL = bool(int(os.environ.get("TINY_TEST_ENABLE_EVAL", "1")))
MODEL_NAME = "Tiny-Dense"
NUM_GPUS = 2


def prepare(root):
    return write_model(root, MODEL_NAME)


def execute(model):
    eval_args = ["--eval-interval", "1"] if ENABLE_EVAL else []
    execute_train(model, NUM_GPUS, "--advantage-estimator", "ppo", *eval_args)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        execute(prepare(root))
