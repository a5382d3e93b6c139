"""Train and save, then load and go on: the numbers are those of a training that was never interrupted."""

import tempfile
from argparse import ArgumentParser
from pathlib import Path

from tiny_slime import checkpoint
from tiny_slime.launch import execute_train, write_model

MODEL_NAME = "Tiny-Dense"
NUM_GPUS = 4

parser = ArgumentParser()
parser.add_argument("--async-save", action="store_true", help="save in the background")
parser.add_argument("--save-optimizer", choices=["cpu", "gpu"], default="cpu", help="where the optimizer is at save")
parser.add_argument("--load-optimizer", choices=["cpu", "gpu"], default="cpu", help="where it is after load")


def prepare(root):
    return write_model(root, MODEL_NAME), str(Path(root, "checkpoints"))


def execute(args, model, directory):
    save = ["--save", directory, "--optimizer-placement", args.save_optimizer]
    execute_train(model, NUM_GPUS, "--num-rollout", "2", *save, *(["--async-save"] if args.async_save else []))
    saved = checkpoint.load(directory)
    assert (saved["step"], saved["placement"]) == (2, args.save_optimizer), saved

    again = ["--load", directory, "--save", directory, "--optimizer-placement", args.load_optimizer]
    resumed = execute_train(model, NUM_GPUS, "--num-rollout", "1", "--save-interval", "1", *again)
    loaded = checkpoint.load(directory)
    assert (loaded["step"], loaded["placement"]) == (3, args.load_optimizer), loaded

    uninterrupted = execute_train(model, NUM_GPUS, "--num-rollout", "3")
    assert resumed == uninterrupted[2:], f"{resumed=} {uninterrupted=}"


if __name__ == "__main__":
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        execute(arguments, *prepare(root))
