"""Runs of the sample pair whose logs are altered, judged again: a pass that is none, a failure that is none?

    python bench/verl_altered.py

The sample runs once a level; each alteration is of a copy of that run's log, without what the probe noted, or with it.
One JSON line where a result is not one of those expected here, then the figures; exit code 1 for a false Pass or Fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ci_tasks.agent.codec import from_json
from ci_tasks.features.verl.level_context import read_context
from ci_tasks.features.verl.run_summary import evaluate
from ci_tasks.records import RunRecord

ROOT = Path(__file__).resolve().parents[1]
P, F, B, N = "Pass", "Fail", "Blocked", "Not proven"
BRIDGE = '(WorkerDict pid=9) Traceback (most recent call last):\n(WorkerDict pid=9)   File "{}", line 3, in transform\n'
LORA = (
    BRIDGE.format("/w/Megatron-Bridge/src/megatron/bridge/peft/lora.py") + "(WorkerDict pid=9) KeyError: 'linear_qkv'\n"
)
OTHER = BRIDGE.format("/w/agent_loop.py") + "(WorkerDict pid=9) TypeError: cannot unpack non-iterable NoneType object\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
DEATH = "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n"
WATCHDOG = "[rank1]:[E ProcessGroupNCCL.cpp:632] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6)\n"
BAR = r"(?=\x1b\[36m\(TaskRunner\w* pid=\d+\)\x1b\[0m \rTraining Progress:   0%)|(?=[^\n]*Training Progress:   0%)"
STEP = r"[^\n]*step:1 - [^\n]*\n"
# name: (level, what is replaced in the log, by what, whether the probe's evidence is kept, the results that are right)
CASES: dict[str, tuple[int, str, str, bool, tuple[str, ...]]] = {
    f"{name}, {'with' if kept else 'without'} the probe": (level, old, new, kept, right if kept else right_alone)
    for kept in (True, False)
    for name, level, old, new, right, right_alone in (
        ("unaltered", 1, r"\Z", "", (P,), (N,)),
        ("a swallowed traceback in Bridge", 1, BAR, LORA, (F,), (F,)),
        ("a handled exception of an agent's loop", 1, BAR, OTHER, (P,), (N,)),
        ("GPU out of memory, swallowed", 1, BAR, OOM, (N,), (N,)),
        ("a worker that died before the end", 1, BAR, DEATH, (N,), (N,)),
        ("NCCL's watchdog, swallowed", 1, BAR, WATCHDOG, (N,), (N,)),
        ("NCCL's watchdog, exit code 1", 1, r"(?=\nci-tasks-verl: end: level 0: )", WATCHDOG, (P, N), (N,)),
        ("exit code 1 without a reason", 1, r"(end: level 1: resume): 0", r"\1: 1", (N, F), (N, F)),
        ("no end of the last training", 1, r"ci-tasks-verl: end: level 1: resume: 0\n", "", (N, B), (N, B)),
        ("no step was logged", 1, STEP, "", (N, P), (N,)),
        ("no progress bar", 1, r"\r?Training Progress:[^\r\n]*", "", (N, P), (N,)),
        ("NaN in the loss", 1, r"actor/pg_loss:np.float64\([^)]*\)", "actor/pg_loss:np.float64(nan)", (F, P), (F,)),
        ("nothing of LoRA", 1, r"[^\n]*(?:Adapter|PEFT|adapter)[^\n]*\n", "", (P,), (N,)),
        ("0 adapters", 1, r"Adapter parameters:   [\d,]+", "Adapter parameters:   0", (P, F), (F,)),
        ("no settings", 1, r"[^\n]*\{'[^\n]*\n", "", (P, N), (N,)),
        ("resume that loads nothing", 1, r"Resuming from ", "Training from scratch ", (F,), (F,)),
        ("nothing about a resume", 1, r"[^\n]*(?:Resuming from|etting global step|oad from)[^\n]*\n", "", (N, P), (N,)),
        ("vanilla in the settings", 1, r"'vanilla_mbridge': False", "'vanilla_mbridge': True", (F, P), (F,)),
        ("an odd word", 1, BAR, "(WorkerDict pid=9) Format validation: FAIL\n", (P,), (N,)),
        ("cut in the middle", 1, r"ci-tasks-verl: begin: level 1: resume[\s\S]*", "", (B, N), (B, N)),
        ("metrics constant", 5, r"critic/rewards/mean:[^ ]*", "critic/rewards/mean:0.5", (F, N, P), (F, N)),
        ("NaN in the gradient", 5, r"actor/grad_norm:[^ ]*", "actor/grad_norm:nan", (F, P), (F,)),
    )
}


def sample(level: int, home: Path) -> Path:
    """A run of the sample pair: its directory."""
    hosts = home / "hosts.yaml"
    spec = {"kind": "local", "runtime": "none", "gpus": 8, "simulate": True}
    hosts.write_text(json.dumps({"hosts": {"box": spec}}))
    env = {**os.environ, "CI_TASKS_HOME": str(home), "CI_TASKS_HOSTS": str(hosts)}
    pair = ["--bridge", str(ROOT / "examples/tiny-bridge"), "--verl", str(ROOT / "examples/tiny-verl")]
    program = [sys.executable, "-c", "from ci_tasks.cli.program import main; main()"]
    options = ["--host", "box", "--no-reward-model", "--level", str(level)]
    subprocess.run([*program, "verl", *pair, *options], env=env, capture_output=True, check=True)
    return next((home / "runs").glob("*/01"))


def judged(run: Path, old: str, new: str, kept: bool, copy: Path) -> tuple[str, str]:
    """(result, sentence) of a copy of the run with another log."""
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("tmp", "workspace", "bin"))
    log = (run / "log").read_text(encoding="utf-8", errors="surrogateescape")
    root = re.search(r"import-driver: pass: (\S+)/src/", log)
    assert root is not None
    new = new.replace("/w/Megatron-Bridge", root[1])
    altered = re.sub(old, new if "\\1" in new else lambda _: new, log)
    (copy / "log").write_text(altered, encoding="utf-8", errors="surrogateescape", newline="")
    if not kept:
        (copy / "evidence.jsonl").unlink()
    context = read_context(str(copy))
    assert context is not None
    record = from_json(RunRecord, (copy / "record.json").read_text(), where="record.json")
    summary = evaluate(context, record, str(copy)).summary
    return summary.result, summary.sentence


def main() -> None:
    wrong = {"Pass": 0, "Fail": 0}
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        runs = {}
        for level in sorted({case[0] for case in CASES.values()}):
            (home / str(level)).mkdir()
            runs[level] = sample(level, home / str(level))
        for number, (case, (level, old, new, kept, right)) in enumerate(CASES.items()):
            result, sentence = judged(runs[level], old, new, kept, home / f"altered-{number}")
            if result not in right:
                wrong[result] = wrong.get(result, 0) + 1
                print(json.dumps({"case": case, "result": result, "right": right, "sentence": sentence[:200]}))
    figures = {"cases": len(CASES), "false Pass": wrong["Pass"], "false Fail": wrong["Fail"], "wrong": wrong}
    print(json.dumps({"figure": "altered verl runs", **figures}))
    sys.exit(1 if wrong["Pass"] or wrong["Fail"] else 0)


if __name__ == "__main__":
    main()
