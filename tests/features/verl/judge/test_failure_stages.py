"""Where a training failed, and whether that says anything of the Bridge change."""

from __future__ import annotations

from ci_tasks.features.verl.judge.failure_stages import CHANGE as OWN
from ci_tasks.features.verl.judge.failure_stages import ENVIRONMENT as ENV
from ci_tasks.features.verl.judge.failure_stages import UNCLEAR, locate_failure
from ci_tasks.records import Triage


def error(text: str, cause: str = "unknown", frame: str = "") -> Triage:
    verdict = "blocked" if cause in ("host_oom_killed", "disk_full", "file_not_found", "import_error") else "failed"
    return Triage(cause, verdict, 9, text, "x#1", 0.9, text=text, frames=(frame,) if frame else ())


def no_module(name: str) -> Triage:
    return error(f"ModuleNotFoundError: No module named '{name}'", "import_error")


DEATH = "A worker died or was killed while executing a task by an unexpected system error."
FULL = error("OSError: [Errno 28] No space left on device", "disk_full")
ENGINE = error("RuntimeError: Engine core initialization failed", "vllm_engine_crash")
OOM = error("torch.OutOfMemoryError: CUDA out of memory", "cuda_oom")
PROVIDER = error("ValueError: tensor size is 2 in the provider", "vllm_engine_crash", "gpt_provider.py:finalize")
SAVE = error("KeyError: 'visual.weight'", "checkpoint_missing_keys", "worker.py:save_checkpoint")
NCCL = error("Watchdog caught collective operation timeout: WorkNCCL(…)")
# What failed; whether Bridge-managed construction had begun; the stage; whose it is.
CASES = [
    (error(DEATH, "host_oom_killed"), True, "the death of a process", UNCLEAR),
    (FULL, False, "a full disk", ENV),
    (error("FileNotFoundError: /data/train.parquet", "file_not_found"), False, "the data", ENV),
    (error("ValueError: x", frame="reward_loop.py:f"), True, "the reward model", ENV),
    (no_module("modelopt"), True, "nvidia-modelopt", ENV),
    # Bridge's own module that is not there is Bridge's fault; Bridge as a whole, the environment's.
    (no_module("megatron.bridge.models.new"), False, "the Bridge checkout's own imports", OWN),
    (no_module("megatron.bridge"), False, "the import of the local Bridge checkout", ENV),
    # The same engine failure on both sides of the line.
    (ENGINE, False, "the rollout engine", ENV),
    (ENGINE, True, "the rollout engine", UNCLEAR),
    (OOM, True, "GPU memory", UNCLEAR),
    # What is said of a traceback weighs more than a guess at the cause.
    (PROVIDER, True, "Bridge-managed construction", OWN),
    (error("ValueError: LoRA target modules ['x'] not found", frame="lora.py:transform"), True, "LoRA", OWN),
    (SAVE, True, "checkpoint save/load", OWN),
    (error("Could not override 'a.b'.", "config_hydra"), False, "verl's configuration", ENV),
    (error("RuntimeError: who knows"), True, "the training step", OWN),
    (NCCL, True, "communication between GPUs", UNCLEAR),
    (error("huggingface_hub.errors.HfHubHTTPError: 504"), True, "the download of a model or data", ENV),
]


def test_a_failure_has_a_stage_and_an_owner() -> None:
    located = [(case, locate_failure(*case[:2])) for case in CASES]
    assert [(found.stage.name, found.owner) for _, found in located] == [case[2:] for case, _ in located]
    # Without a word, how far it came decides.
    assert [locate_failure(None, constructed).owner for constructed in (False, True)] == [ENV, UNCLEAR]


def test_an_error_about_the_reward_models_own_path_is_the_reward_models() -> None:
    triaged = error("ValueError: Invalid repository ID or local directory specified: '/models/rm'.")
    assert locate_failure(triaged, True, ["", "/models/rm"]).stage.name == "the reward model"
    assert locate_failure(triaged, True, ["/other"]).stage.name == "the training step"
