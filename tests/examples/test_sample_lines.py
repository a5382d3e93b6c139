"""The samples print nothing that verl, Megatron-Bridge and what they run on do not: each call that prints is listed
here with where the line is from, so that what is judged on the samples is what real runs say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TREES = ("tiny-verl/verl", "tiny-bridge/src", "tiny-bridge/3rdparty")
PRINTS = ("print", "pprint", "self.say")
TRAINER, TRAINER_V1 = "verl/trainer/ppo/ray_trainer.py", "verl/trainer/ppo/v1/trainer_base.py"
MANAGER, CORE = "verl/utils/checkpoint/megatron_checkpoint_manager.py", "megatron/core/distributed"
PEFT_UTILS = "verl/utils/megatron_peft_utils.py: print_adapter_info"
# What is printed, {} for a value → the file and function that print it, at verl v0.7.0 to v0.9.0 and Bridge of 2026.
SOURCES = {
    "Megatron-Bridge package not found. Please install Megatron-Bridge with `pip install megatron-bridge`": (
        "verl/models/mcore/bridge.py"
    ),
    "ray init kwargs: {}": "verl/trainer/main_ppo.py: run_ppo",
    "Error executing job with overrides: {}": "hydra/_internal/utils.py: run_and_report",
    "config": "verl/trainer/main_ppo.py: TaskRunner.run, the resolved configuration",
    "dataset len: 64": "verl/utils/dataset/rl_dataset.py: _read_files_and_tokenize",
    "Found checkpoint: %s {}": "verl/utils/checkpoint/checkpoint_manager.py: find_latest_ckpt_path",
    "Checkpoint tracker file does not exist: {}": "verl/utils/checkpoint/checkpoint_manager.py: find_latest_ckpt_path",
    "local_global_step_folder: {}": f"{TRAINER}: _save_checkpoint",
    "Training from scratch": f"{TRAINER}: _load_checkpoint",
    "Load from checkpoint folder: {}": f"{TRAINER}: _load_checkpoint",
    "Setting global step to {}": f"{TRAINER}: _load_checkpoint",
    "Resuming from {}": f"{TRAINER}: _load_checkpoint",
    "Saving checkpoint to {}": f"{TRAINER_V1}: _save_checkpoint",
    "Resuming from {}, setting global step to {}": f"{TRAINER_V1}: _load_checkpoint",
    "Fetching 1 files:   0%|          | 0/1 [00:00<?, ?it/s]": "huggingface_hub/_snapshot_download.py, by tqdm",
    "Initial validation metrics: {}": f"{TRAINER}: fit",
    "Final validation metrics: {}": f"{TRAINER}: fit",
    "console_line(found, done)": "verl/utils/logger/aggregate_logger.py: LocalLogger.log",
    "console_line(metrics, step)": "verl/utils/logger/aggregate_logger.py: LocalLogger.log",
    "\rTraining Progress: {}%|{}| {}/{} [{}]": f"{TRAINER}: fit, by tqdm",
    "[Rank {}] Checkpoint save completed for {}": f"{MANAGER}: save_checkpoint",
    "[Rank {}] Loaded {} checkpoint from {}": f"{MANAGER}: load_checkpoint",
    "module: 1": "verl/workers/engine/megatron/transformer_impl.py: _build_megatron_module",
    "text": "what self.say is given",
    "routing replay layers: {}": "verl/workers/engine/megatron/transformer_impl.py: _build_megatron_module",
    "\n{}\nPEFT Adapter Information:": PEFT_UTILS,
    "  Total parameters:     {}": PEFT_UTILS,
    "  Adapter parameters:   {}": PEFT_UTILS,
    "  Trainable percentage: {}%\n{}\n": PEFT_UTILS,
    "Initializing a V1 LLM engine (v0.11.0) with config: model={}": "vllm/v1/engine/core.py: EngineCore.__init__",
    "Initializing a V1 LLM engine (v0.11.0) with config: model={}, task='reward'": "vllm/v1/engine/core.py",
    "Graph capturing finished in 0 secs, took 0.13 GiB": "vllm/v1/worker/gpu_model_runner.py: capture_model",
    "(EngineCore_DP0 pid=4711) EngineCore failed to start.": "vllm/v1/engine/core.py: run_engine_core",
    " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): {}": "verl/utils/megatron_utils.py",
    "Adding lora to: {}": "megatron/bridge/peft/lora.py: LoRA.transform",
    "Setting up DistributedDataParallel with config {}": f"{CORE}/distributed_data_parallel.py: __init__",
    "Number of buckets for gradient all-reduce / reduce-scatter: {}": f"{CORE}/param_and_grad_buffer.py: __init__",
}
# By their beginning, of what Ray, torch and Python say when a run is taken down.
SHUTDOWN = (
    "Exception ignored in: <function _MultiProcessingDataLoaderIter",
    "\x1b[33m(raylet)\x1b[0m A worker died or",
)


def printed() -> Iterator[tuple[str, str]]:
    """(file, text) of each call that prints; a value is {}."""
    for file in sorted(path for tree in TREES for path in (EXAMPLES / tree).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and (name in PRINTS or name.startswith("logger.")):
                yield str(file.relative_to(EXAMPLES)), _text(node.args[0])


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


def test_each_line_that_the_samples_print_is_one_of_a_real_run() -> None:
    unknown = [(file, text) for file, text in printed() if text not in SOURCES and not text.startswith(SHUTDOWN)]
    assert unknown == []


def test_no_source_is_of_a_line_that_nothing_prints() -> None:
    assert set(SOURCES) - {text for _, text in printed()} == set()
