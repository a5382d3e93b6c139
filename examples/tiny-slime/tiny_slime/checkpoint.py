"""Training state on disk: one directory per step, and a file that names the latest complete one."""

import json
import os
import threading
from pathlib import Path

LATEST = "latest_checkpointed_iteration.txt"


def save(directory, state):
    home = Path(directory) / f"iter_{state['step']:07d}"
    home.mkdir(parents=True, exist_ok=True)
    _replace(home / "state.json", json.dumps(state))
    _replace(Path(directory) / LATEST, f"{state['step']}\n")


def save_in_background(directory, state):
    """Save the state as it is now while training goes on; join the thread before the process ends."""
    thread = threading.Thread(target=save, args=(directory, json.loads(json.dumps(state))))
    thread.start()
    return thread


def load(directory):
    step = int((Path(directory) / LATEST).read_text())
    return json.loads((Path(directory) / f"iter_{step:07d}" / "state.json").read_text())


def _replace(path, text):
    beside = path.with_suffix(".tmp")
    beside.write_text(text)
    os.replace(beside, path)
