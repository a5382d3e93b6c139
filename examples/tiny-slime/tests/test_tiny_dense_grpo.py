import os
import tempfile

from tiny_slime.launch import execute_train, write_model

ENABLE_EVAL = bool(int(os.environ.get("TINY_TEST_ENABLE_EVAL", "1")))
MODEL_NAME = "Tiny-Dense"
NUM_GPUS = 1


def prepare(root):
    return write_model(root, MODEL_NAME)


def execute(model):
    eval_args = ["--eval-interval", "2"] if ENABLE_EVAL else []
    steps = execute_train(model, NUM_GPUS, "--num-rollout", "4", *eval_args)
    assert steps[-1]["train/kl_loss"] > 0, f"four steps did not move the policy: {steps}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        execute(prepare(root))
