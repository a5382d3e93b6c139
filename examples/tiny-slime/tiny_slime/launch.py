"""What the GPU tests share: a model directory to train from, and the trainer as a process of its own."""

import json
import shlex
import subprocess
import sys
from pathlib import Path


def write_model(root, name, experts=0, logits=(0.0, 0.0, 0.0, 0.0)):
    """A "model" whose policy finds four answers equally likely, if nothing else is said."""
    model = Path(root) / name
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"name": name, "experts": experts, "logits": list(logits)}))
    return model


def execute_train(model, num_gpus, *arguments):
    """Train, and return the metrics of each step."""
    dump = model / f"metrics-{len(list(model.iterdir()))}.jsonl"
    command = [sys.executable, "-m", "tiny_slime.train", "--model", str(model), "--num-gpus", str(num_gpus)]
    command += ["--ci-test", "--dump-metrics", str(dump), *arguments]
    print(f"EXEC: {shlex.join(command)}", flush=True)
    subprocess.run(command, check=True)
    return [json.loads(line) for line in dump.read_text().splitlines()]
