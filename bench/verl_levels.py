"""Every verl level on the sample pair, and every way in which the sample can fail: is the summary as the guide has it?

    python bench/verl_levels.py [NAME…]

One JSON line a case; exit code 1 where a result or a deliverable is not as expected here. No timing is judged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAIR = ["--bridge", str(ROOT / "examples/tiny-bridge"), "--verl", str(ROOT / "examples/tiny-verl"), "--host", "box"]
QUIET = ["--no-reward-model"]
FEATURE = ["--env", "ROUTING_REPLAY_MODE=R3", "--proof", "routing replay layers"]
# name: (level, flags, TINY_VERL_FAILURE, result, import, backend run, requested variants)
CASES = {
    "level 0": (0, QUIET, "", "Pass", "Pass", "Pass", "Not requested"),
    "level 1": (1, QUIET, "", "Pass", "Pass", "Pass", "Pass"),
    "level 2": (2, QUIET, "", "Pass", "Pass", "Pass", "Pass"),
    "level 3": (3, QUIET, "", "Pass", "Pass", "Pass", "Pass"),
    "level 4": (4, [*QUIET, *FEATURE], "", "Pass", "Pass", "Pass", "Pass"),
    "level 5": (5, QUIET, "", "Pass", "Pass", "Pass", "Pass"),
    "wrong import path in the worker only": (0, QUIET, "worker-import", "Blocked", "Fail", None, "Not requested"),
    "resume that loads nothing": (1, QUIET, "resume-nothing", "Fail", "Pass", "Pass", "Fail"),
    "VANILLA_MBRIDGE=True in the log": (0, QUIET, "vanilla", "Fail", "Pass", "Fail", "Not requested"),
    "Ray cluster with stale PYTHONPATH": (0, QUIET, "stale-ray-pinned", "Blocked", "Fail", None, "Not requested"),
    "missing reward model": (0, [], "", "Blocked", "Pass", "Skipped", "Not requested"),
    "disk full during download": (0, QUIET, "disk-full", "Blocked", "Pass", "Skipped", "Not requested"),
    "NaN at step 7": (5, QUIET, "nan-at-7", "Fail", "Pass", "Pass", "Fail"),
    "constant reward": (5, QUIET, "constant-reward", "Fail", "Pass", "Pass", "Fail"),
    "cap-hit responses": (5, QUIET, "cap-hit", "Fail", "Pass", "Pass", "Fail"),
    "provider": (0, QUIET, "provider", "Fail", "Pass", "Fail", "Not requested"),
    "LoRA target": (0, QUIET, "lora-target", "Fail", "Pass", "Fail", "Not requested"),
    "rollout before the actor": (0, QUIET, "rollout-first", "Blocked", "Pass", "Blocked", "Not requested"),
    "ROCR conflict": (0, QUIET, "rocr", "Blocked", "Pass", "Blocked", "Not requested"),
    "Ray does not start": (0, QUIET, "ray-init", "Blocked", None, None, "Not requested"),
    "zero gradients": (5, QUIET, "zero-grad", "Fail", "Pass", "Pass", "Fail"),
    "nothing trainable": (5, QUIET, "no-trainable", "Fail", "Pass", None, "Fail"),
    "keys missing in the export": (1, QUIET, "save-keys", "Fail", "Pass", "Pass", "Fail"),
    "daemon stopped": (0, [*QUIET, "--image", "verlai/verl:none"], "dockerd", "Blocked", None, None, "Not requested"),
}
NAMES = ("Local Bridge import in verl", "verl Megatron backend run", "Requested variants")


def run(name: str, home: Path) -> bool:
    level, flags, failure, result, *wanted = CASES[name]
    spec: dict[str, object] = {"kind": "local", "runtime": "none", "gpus": 8, "simulate": True}
    if failure == "dockerd":
        spec = {"kind": "local", "gpus": 8, "env": {"DOCKER_HOST": f"unix://{home}/stopped.sock"}}
    elif failure:
        spec["env"] = {"TINY_VERL_FAILURE": failure}
    hosts = home / "hosts.yaml"
    hosts.write_text(json.dumps({"hosts": {"box": spec}}))
    env = {**os.environ, "CI_TASKS_HOME": str(home / "home"), "CI_TASKS_HOSTS": str(hosts)}
    command = [
        sys.executable,
        "-c",
        "from ci_tasks.cli.program import main; main()",
        "verl",
        "--level",
        str(level),
        *PAIR,
        *flags,
    ]
    begun = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", check=False)
    files = sorted((home / "home/runs").glob("*/01/summary.json"))
    if not files:
        print(json.dumps({"case": name, "problem": (done.stderr or done.stdout)[-600:]}))
        return False
    found = json.loads(files[-1].read_text())
    got = {one["name"]: one["status"] for one in found["deliverables"]}
    code = {"Pass": 0, "Fail": 1, "Not proven": 4, "Blocked": 125}[found["result"]]
    fits = found["result"] == result and done.returncode == code
    fits = fits and all(want is None or got[key] == want for key, want in zip(NAMES, wanted, strict=True))
    line = {"case": name, "right": fits, "result": found["result"], **got, "sentence": found["sentence"][:160]}
    print(json.dumps({**line, "seconds": round(time.monotonic() - begun, 1)}), flush=True)
    files[-1].rename(files[-1].with_name("judged.json"))
    return fits


def main() -> None:
    names = sys.argv[1:] or list(CASES)
    with tempfile.TemporaryDirectory() as home:
        right = [run(name, Path(home)) for name in names]
    print(json.dumps({"figure": "verl levels", "right": sum(right), "cases": len(right)}))
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
