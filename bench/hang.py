"""Seconds from the question to the answer "which rank?", for 8, 64 and 512 processes of which one waits elsewhere.

    python bench/hang.py [COUNT…]

One JSON line a figure: with the probe in all processes, and with py-spy alone. `named` is whether the rank was named.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci_tasks.agent.hang.collect import look
from ci_tasks.agent.probe.evidence import payload
from ci_tasks.features.hang.analysis import analyse_hang
from ci_tasks.hosts.provision import find_py_spy

# A rank that waits, without end: all but the last in what looks like torch's all_reduce.
_RANK = """
import os, queue, sys
number, count, directory, probe, ready = sys.argv[1:]
if probe:
    payload = {}
    exec(compile(open(probe).read(), "ci_tasks_probe.py", "exec"), payload)
    payload["begin"](directory, (), {}, {})
names = {}
wait = "import threading\\ndef all_reduce():\\n    threading.Event().wait()\\n"
exec(compile(wait, "/x/lib/python3/site-packages/torch/distributed/distributed_c10d.py", "exec"), names)

def load_next_batch():
    queue.Queue().get()

def train():
    names["all_reduce"]()

os.write(int(ready), b"x")
load_next_batch() if number == str(int(count) - 1) else train()
"""


def measure(count: int, probed: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "train.py")
        program.write_text(_RANK)
        probe = Path(directory, "ci_tasks_probe.py")
        probe.write_text(payload())
        read, write = os.pipe()
        ranks = []
        for number in range(count):
            argv = [sys.executable, program, number, count, directory, probe if probed else "", write]
            env = {**os.environ, "RANK": str(number), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
            ranks.append(subprocess.Popen(list(map(str, argv)), pass_fds=[write], env=env))
        try:
            seen = 0
            while seen < count:
                seen += len(os.read(read, count))
            time.sleep(1)
            pids = [process.pid for process in ranks]
            return {"processes": count, "by": "probe" if probed else "py-spy", **answer(pids)}
        finally:
            for process in ranks:
                process.kill()
            for process in ranks:
                process.wait()
            os.close(read)
            os.close(write)


def answer(pids: list[int]) -> dict[str, object]:
    began = time.perf_counter()
    program = find_py_spy()
    seen = replace(look([sys.executable], pids, program.read_bytes() if program else b""), machine=os.uname().machine)
    looked = time.perf_counter() - began
    hang = analyse_hang(seen)
    named = [culprit.rank for culprit in hang.culprits] == [len(pids) - 1]
    stacks = sum(bool(process.stacks) for process in seen.processes)
    seconds = time.perf_counter() - began
    if not named:
        print(hang.reason, file=sys.stderr)
    return {"look_s": round(looked, 2), "answer_s": round(seconds, 2), "stacks": stacks, "named": named}


if __name__ == "__main__":
    for count in map(int, sys.argv[1:] or ("8", "64", "512")):
        for probed in (True, False):
            print(json.dumps({"benchmark": "hang", **measure(count, probed)}), flush=True)
