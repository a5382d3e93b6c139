"""Runs of the sample pair whose logs are altered, judged again: a pass that is none, a failure that is none?

    python bench/verl_altered.py

The sample runs once a level. Each alteration is of a copy of its log, without what the probe noted or with it, or of
what the probe noted. Then it runs once for each way in which it can fail by itself. One JSON line where a result is not
the right one, then the figures; exit code 1 for one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ci_tasks.agent.codec import from_json
from ci_tasks.features.verl.level_run import evaluate, read_context
from ci_tasks.records import RunRecord

ROOT = Path(__file__).resolve().parents[1]
P, F, B, N = "Pass", "Fail", "Blocked", "Not proven"
BRIDGE = '(WorkerDict pid=9) Traceback (most recent call last):\n(WorkerDict pid=9)   File "{}", line 3, in transform\n'
LORA = BRIDGE.format("/w/Megatron-Bridge/src/megatron/bridge/peft/lora.py") + "(WorkerDict pid=9) KeyError: 'qkv'\n"
OTHER = BRIDGE.format("/w/agent_loop.py") + "(WorkerDict pid=9) TypeError: cannot unpack non-iterable NoneType object\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
DEATH = "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n"
WATCHDOG = "[rank1]:[E ProcessGroupNCCL.cpp:632] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6)\n"
BAR = r"(?=\x1b\[36m\(TaskRunner\w* pid=\d+\)\x1b\[0m \rTraining Progress:   0%)|(?=[^\n]*Training Progress:   0%)"
LOG, NOTED, ASKED = "log", "evidence.jsonl", "verl.json"
Edit = tuple[str, str, "str | Callable[[re.Match[str]], str]"]  # the file, what is replaced in it, by what
# Level 0 from where its adapters are made, and all that follows.
CONSTRUCTION = r"[^\n]*Adding lora to: decoder\.layers\.0\.self_attention\.linear_qkv[\s\S]*"
LOW_MEMORY = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
ELSEWHERE = "(WorkerDict pid=9) /usr/lib/python3/dist-packages/megatron/bridge/peft/lora.py:3: UserWarning: x\n"
LAST_VALUE = r"(step:2 - (?![\s\S]*step:2 - )[^\n]*critic/score/mean:)[^ ]*"
# What is altered in the log: (name, level, pattern, by what, the result with what the probe noted, and without it).
ALTERED_LOG = (
    ("unaltered", 1, r"\Z", "", P, N),
    ("a swallowed traceback in Bridge", 1, BAR, LORA, F, F),
    ("a handled exception of an agent's loop", 1, BAR, OTHER, P, N),
    ("GPU out of memory, swallowed", 1, BAR, OOM, N, N),
    ("a worker that died before the end", 1, BAR, DEATH, N, N),
    ("a worker over the memory limit, swallowed", 1, BAR, LOW_MEMORY, N, N),
    ("NCCL's watchdog, swallowed", 1, BAR, WATCHDOG, N, N),
    ("NCCL's watchdog at shutdown", 1, r"(?=\nci-tasks-verl: end: level 0: )", WATCHDOG, P, N),
    ("NCCL's watchdog, exit code 1", 1, r"(\nci-tasks-verl: end: level 0): 0", WATCHDOG + r"\1: 1", N, N),
    ("exit code 1 without a reason", 1, r"(end: level 1: resume): 0", r"\1: 1", N, N),
    ("exit code 139", 1, r"(end: level 1: resume): 0", r"\1: 139", N, N),
    ("no end of the last training", 1, r"ci-tasks-verl: end: level 1: uninterrupted: 0\n", "", N, N),
    ("no step was logged", 1, r"[^\n]*step:1 - [^\n]*\n", "", N, N),
    ("no progress bar", 1, r"\r?Training Progress:[^\r\n]*", "", N, N),
    ("a progress bar that stops", 1, r" 1/1 \[", " 1/3 [", N, N),
    ("NaN in the loss", 1, r"actor/pg_loss:np.float64\([^)]*\)", "actor/pg_loss:np.float64(nan)", F, F),
    ("nothing of LoRA", 1, r"[^\n]*(?:Adapter|PEFT|adapter)[^\n]*\n", "", P, N),
    # What the models had is the first source; without it, the line is.
    ("0 adapters", 1, r"Adapter parameters:   [\d,]+", "Adapter parameters:   0", P, F),
    ("Megatron-FSDP in the log", 1, BAR, "(WorkerDict pid=9) Setting up FullyShardedDataParallel\n", P, F),
    ("no settings", 1, r"[^\n]*\{'[^\n]*\n", "", N, N),
    ("resume that loads nothing", 1, r"Resuming from ", "Training from scratch ", F, F),
    ("nothing about a resume", 1, r"[^\n]*(?:Resuming from|etting global step|oad from)[^\n]*\n", "", N, N),
    ("vanilla in the settings", 1, r"'vanilla_mbridge': False", "'vanilla_mbridge': True", F, F),
    ("another engine in the settings", 1, r"'name': 'vllm'", "'name': 'sglang'", F, F),
    ("an odd word", 1, BAR, "(WorkerDict pid=9) Format validation: FAIL\n", P, N),
    ("another Bridge in a worker's warning", 1, BAR, ELSEWHERE, B, B),
    ("cut in the middle", 1, r"ci-tasks-verl: begin: level 1: resume[\s\S]*", "", N, N),
    ("other tensors after the resume", 1, r"(uninterrupted: )[0-9a-f](\w+ actor/model)", r"\1x\2", N, N),
    ("another rollout after the resume", 1, LAST_VALUE, r"\g<1>0.9", P, N),
    ("no checks of Bridge", 1, r"ci-tasks-verl: bridge-checks: [^\n]*\n", "", N, N),
    ("checks of Bridge that could not run", 1, r"(bridge-checks): (?:simulated|pass)", r"\1: blocked", N, N),
    ("checks of Bridge that failed", 1, r"(bridge-checks): (?:simulated|pass)", r"\1: fail", F, F),
    ("metrics constant", 5, r"critic/rewards/mean:[^ ]*", "critic/rewards/mean:0.5", F, F),
    ("NaN in the gradient", 5, r"actor/grad_norm:[^ ]*", "actor/grad_norm:nan", F, F),
)
# What is altered in what the probe noted, whose records are JSON within JSON.
ALTERED_NOTES = (
    ("nothing trainable", r'(\\"trainable\\": )8192', r"\1 0", F),
    ("no adapter", r'\\"LoRALinear\\": 16', "", F),
    ("no provider of Bridge's", r"GPTModelProvider", "", F),
    ("Megatron-FSDP was built", r'\[\\"DistributedDataParallel', r'[\\"FullyShardedDataParallel', F),
    ("another tensor parallel size", r'(\\"tensor\\": )1', r"\1 2", F),
    ("no parallel sizes", r'"kind": "sizes"', '"kind": "none"', N),
    ("a checkpoint that could not be read", r'(\\"error\\": \\")(?=\\")', r"\1KeyError: x", F),
    ("no checkpoint that was read", r'"kind": "loaded"', '"kind": "none"', N),
    ("no checkpoint that was written", r'"kind": "saved"', '"kind": "none"', N),
    ("another Bridge in each process", r'[^"]*/Megatron-Bridge(/src/megatron/bridge/)', r"/usr/lib\1", B),
)
# What ends level 0 in Bridge: whose it is says the exception, and not the words in it.
IN_BRIDGE = {
    B: (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory",
        "ImportError: cannot import name 'Qwen9' from 'transformers' (/usr/lib/t/__init__.py)",
        "OSError: You are trying to access a gated repo.",
        "OSError: [Errno 113] No route to host",
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete",
        "PermissionError: [Errno 13] Permission denied: '/root/.cache/huggingface/hub'",
        "OSError: [Errno 24] Too many open files: '/models/a.safetensors'",
        "ImportError: /usr/lib/te/transformer_engine_torch.so: undefined symbol: _ZN3c106",
        "OSError: [Errno 28] No space left on device",
        "AttributeError: module 'transformer_engine' has no attribute 'pytorch'",
        "ImportError: cannot import name 'A' from 'megatron.core' (/usr/lib/m.py)",
    ),
    N: (
        OOM.rstrip(),
        WATCHDOG.rstrip(),
    ),
    F: (
        "NameError: name 'foo' is not defined",
        "AttributeError: 'GPTModelProvider' object has no attribute 'x'",
        "TypeError: provide() got an unexpected keyword argument 'vp_stage'",
        "ImportError: cannot import name 'A' from 'megatron.core.utils'",
        "ModuleNotFoundError: No module named 'megatron.core.new'",
        "KeyError: 'reward_model'",
        "ValueError: vllm weight and placement group do not fit",
        "RuntimeError: Missing key(s) in state_dict: 'decoder.layers.0'",
        "RuntimeError: shape mismatch: value tensor of shape [4]",
    ),
}
PLACES = {
    "in AutoBridge": ("conversion/auto_bridge.py", "load_hf_weights"),
    "as Bridge is imported": ("__init__.py", "<module>"),
}


def raised(place: str, text: str) -> str:
    """A traceback out of Bridge, and the end of the training with it."""
    file, function = PLACES[place]
    return (
        '(WorkerDict pid=9) Traceback (most recent call last):\n(WorkerDict pid=9)   File "/w/Megatron-Bridge/src/'
        f'megatron/bridge/models/{file}", line 3, in {function}\n(WorkerDict pid=9) {text}\n'
        "ci-tasks-verl: end: level 0: 1\n"
    ).replace("\\", "\\\\")


def by_step(key: str, value: Callable[[int, float], float]) -> Edit:
    """Another value of a metric at each step."""

    def other(match: re.Match[str]) -> str:
        number = float(match[3].removeprefix("np.float64(").rstrip(")"))
        return f"{match[1]}{value(int(match[2]), number)!r}"

    return LOG, rf"(step:(\d+) - (?:[^\n]* )?{key}:)(\S+)", other


SMALL = (
    (ASKED, r'"env": \{\}', '"env": {"COMMON_TP": "1", "COMMON_PP": "1"}'),
    (NOTED, r'(\\"(?:tensor|pipeline)\\": )2', r"\1 1"),
    (LOG, r"('pipeline_model_parallel_size': )2((?:.*\n)*?.*'tensor_model_parallel_size': )2", r"\g<1>1\g<2>1"),
)
SERVED = "(vLLMHttpServer pid=9) Initializing a V1 LLM engine (v0.11) with config: tensor_parallel_size={}, x\n"
# Further runs: the level, what is altered, the right result.
FURTHER: tuple[tuple[str, int, tuple[Edit, ...], str], ...] = (
    ("exit code 139 after all steps", 1, ((LOG, r"(end: level 0): 0", r"\1: 139"),), N),
    ("vLLM as wide as asked", 1, ((LOG, BAR, SERVED.format(1)),), P),
    ("vLLM wider than asked", 1, ((LOG, BAR, SERVED.format(2)),), F),
    ("LoRA on one of sixteen layers", 1, ((NOTED, r'(\\"LoRALinear\\": )16', r"\g<1>1"),), F),
    ("the critic's checkpoint alone", 1, ((NOTED, r"(global_step_\d/)actor", r"\1critic"),), F),
    ("another experiment's checkpoint", 1, ((LOG, r"(from \S*)/verl-test/", r"\1/other/"),), F),
    ("another experiment's files", 1, ((NOTED, r'("kind": "loaded"[^}]*)/verl-test/', r"\1/other/"),), F),
    ("a loss that is no number", 1, (by_step("actor/pg_loss", lambda _step, _old: "tensor"),), N),  # type: ignore
    ("a validation that falls", 5, (by_step(r"val-core/\S*?", lambda step, old: old if step == 0 else 0.1 * old),), N),
    ("zero gradients at every other step", 5, (by_step("actor/grad_norm", lambda step, old: old * (step % 2)),), F),
    ("one zero gradient", 5, (by_step("actor/grad_norm", lambda step, old: old * (step != 7)),), P),
    ("a saturated reward", 5, (by_step("critic/rewards/mean", lambda step, old: min(1.0, 0.7 + 0.05 * step)),), N),
    ("a reward that halves", 5, (by_step("critic/rewards/mean", lambda step, old: 0.8 - 0.02 * step + old / 50),), F),
)
# Runs of the sample in which something is planted: (level, what, flags, the right result).
QUIET, FEATURE = ("--no-reward-model",), ("--env", "ROUTING_REPLAY_MODE=R3", "--proof", "routing replay layers")
PLANTED: tuple[tuple[int, str, tuple[str, ...], str], ...] = (
    (0, "", QUIET, P),
    (1, "", QUIET, P),
    (2, "", QUIET, P),
    (3, "", QUIET, P),
    (4, "", (*QUIET, *FEATURE), P),
    (5, "", QUIET, P),
    (0, "worker-import", QUIET, B),
    (1, "resume-nothing", QUIET, F),
    (0, "vanilla", QUIET, F),
    (0, "stale-ray-pinned", QUIET, B),
    (0, "", (), B),
    (0, "disk-full", QUIET, B),
    (5, "nan-at-7", QUIET, F),
    (5, "constant-reward", QUIET, F),
    (5, "cap-hit", QUIET, F),
    (0, "provider", QUIET, F),
    (0, "lora-target", QUIET, F),
    (0, "rollout-first", QUIET, B),
    (0, "rocr", QUIET, B),
    (0, "ray-init", QUIET, B),
    (5, "zero-grad", QUIET, F),
    (5, "no-trainable", QUIET, F),
    (1, "save-keys", QUIET, F),
)
# name: (level, edits, whether what the probe noted is kept, the right result)
CASES: dict[str, tuple[int, tuple[Edit, ...], bool, str]] = {
    **{
        f"{name}, with the probe": (level, ((LOG, old, new),), True, one)
        for name, level, old, new, one, _ in ALTERED_LOG
    },
    **{f"{name}, without": (level, ((LOG, old, new),), False, one) for name, level, old, new, _, one in ALTERED_LOG},
    **{f"{name}, as noted": (1, ((NOTED, old, new),), True, right) for name, old, new, right in ALTERED_NOTES},
    **{
        f"{text}, {place}": (1, ((LOG, CONSTRUCTION, raised(place, text)),), True, right)
        for place in PLACES
        for right, texts in IN_BRIDGE.items()
        for text in (texts if place == "in AutoBridge" or right != N else ())
    },
    **{name: (level, edits, True, right) for name, level, edits, right in FURTHER},
    "level 2 that is not parallel": (2, SMALL, True, N),
}


def sample(level: int, home: Path, failure: str = "", flags: Sequence[str] = QUIET) -> Path:
    """A run of the sample pair: its directory."""
    home.mkdir()
    spec = {"kind": "local", "runtime": "none", "gpus": 8, "simulate": True, "env": {"TINY_VERL_FAILURE": failure}}
    (home / "hosts.yaml").write_text(json.dumps({"hosts": {"box": spec}}))
    env = {**os.environ, "CI_TASKS_HOME": str(home), "CI_TASKS_HOSTS": str(home / "hosts.yaml")}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"  # where uv is
    pair = ["--bridge", str(ROOT / "examples/tiny-bridge"), "--verl", str(ROOT / "examples/tiny-verl"), "--host", "box"]
    program = [sys.executable, "-c", "from ci_tasks.cli.program import main; main()", "verl", *pair]
    options = ["--level", str(level), *flags, *(["--exact"] if level == 1 else [])]
    subprocess.run([*program, *options], env=env, capture_output=True, check=False)
    return next((home / "runs").glob("*/01"))


def judged(run: Path, edits: tuple[Edit, ...], kept: bool, copy: Path) -> tuple[str, str]:
    """(result, sentence) of a copy of the run with another log, or other notes of the probe."""
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("tmp", "workspace", "bin"))
    log = (run / "log").read_text(encoding="utf-8", errors="surrogateescape")
    root = re.search(r"import-driver: pass: (\S+)/src/", log)
    assert root is not None
    for file, old, new in edits:
        text = (copy / file).read_text(encoding="utf-8", errors="surrogateescape")
        altered = re.sub(old, new.replace("/w/Megatron-Bridge", root[1]) if isinstance(new, str) else new, text)
        if altered == text and old != r"\Z":
            raise SystemExit(f"{old!r} alters nothing")
        (copy / file).write_text(altered, encoding="utf-8", errors="surrogateescape", newline="")
    if not kept:
        (copy / "evidence.jsonl").unlink()
    context = read_context(str(copy))
    assert context is not None
    record = from_json(RunRecord, (copy / "record.json").read_text(), where="record.json")
    summary, _ = evaluate(context, record, str(copy))
    return summary.result, summary.sentence


def results(home: Path) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """(case, right result, (result, sentence)) of each."""
    runs = {level: sample(level, home / str(level)) for level in sorted({case[0] for case in CASES.values()})}
    for number, (case, (level, edits, kept, right)) in enumerate(CASES.items()):
        yield case, right, judged(runs[level], edits, kept, home / f"altered-{number}")
    for number, (level, failure, flags, right) in enumerate(PLANTED):
        run = sample(level, home / f"planted-{number}", failure, flags)
        found = json.loads((run / "summary.json").read_text())
        yield f"level {level}, {failure}", right, (found["result"], found["sentence"])


def main() -> None:
    wrong = {"Pass": 0, "Fail": 0, "Blocked": 0}
    with tempfile.TemporaryDirectory() as name:
        for case, right, (result, sentence) in results(Path(name)):
            if result != right:
                wrong[result] = wrong.get(result, 0) + 1
                print(json.dumps({"case": case, "result": result, "right": right, "sentence": sentence[:200]}))
    figures = {f"false {word}": count for word, count in wrong.items()}
    print(json.dumps({"figure": "altered verl runs", "cases": len(CASES) + len(PLANTED), **figures}))
    sys.exit(1 if any(wrong.values()) else 0)


if __name__ == "__main__":
    main()
