"""Where a training failed, and whether that says anything of the Bridge change."""

from __future__ import annotations

import pytest

from ci_tasks.features.verl.judge.failure_stages import CHANGE as OWN
from ci_tasks.features.verl.judge.failure_stages import ENVIRONMENT as ENV
from ci_tasks.features.verl.judge.failure_stages import (
    STAGES,
    UNCLEAR,
    locate_failure,
    stage_of_check,
    stage_of_reason,
)
from ci_tasks.records import Triage


def error(text: str, cause: str = "unknown", verdict: str = "failed", frames: tuple[str, ...] = ()) -> Triage:
    return Triage(cause, verdict, 9, text, "x#1", 0.9, text=text, frames=frames)


DEATH = "A worker died or was killed while executing a task by an unexpected system error."
# What failed; whether Bridge-managed construction had begun; the stage; whose it is.
CASES = [
    (error(DEATH, "host_oom_killed", "blocked"), True, "the death of a process", UNCLEAR),
    (error("OSError: [Errno 28] No space left on device", "disk_full", "blocked"), False, "a full disk", ENV),
    (error("OSError: [Errno 28] No space left on device", "disk_full", "blocked"), True, "a full disk", ENV),
    (error("FileNotFoundError: /data/train.parquet", "file_not_found", "blocked"), False, "the data", ENV),
    (error("ValueError: x", frames=("reward_loop.py:f",)), True, "the reward model", ENV),
    (
        error("ModuleNotFoundError: No module named 'modelopt'", "import_error", "blocked"),
        True,
        "nvidia-modelopt",
        ENV,
    ),
    (
        error("ModuleNotFoundError: No module named 'flash_attn'", "import_error", "blocked"),
        True,
        "package setup",
        ENV,
    ),
    # Bridge's own module that is not there is Bridge's fault; Bridge as a whole, the environment's.
    (
        error("ModuleNotFoundError: No module named 'megatron.bridge.models.new'", "import_error", "blocked"),
        False,
        "the Bridge checkout's own imports",
        OWN,
    ),
    (
        error("ModuleNotFoundError: No module named 'megatron.bridge'", "import_error", "blocked"),
        False,
        "the import of the local Bridge checkout",
        ENV,
    ),
    # The same engine failure on both sides of the line.
    (error("RuntimeError: Engine core initialization failed", "vllm_engine_crash"), False, "the rollout engine", ENV),
    (
        error("RuntimeError: Engine core initialization failed", "vllm_engine_crash"),
        True,
        "the rollout engine",
        UNCLEAR,
    ),
    (error("torch.OutOfMemoryError: CUDA out of memory", "cuda_oom"), False, "GPU memory", ENV),
    (error("torch.OutOfMemoryError: CUDA out of memory", "cuda_oom"), True, "GPU memory", UNCLEAR),
    # What is said of a traceback weighs more than a guess at the cause.
    (
        error(
            "ValueError: tensor size is 2 in the provider", "vllm_engine_crash", frames=("gpt_provider.py:finalize",)
        ),
        True,
        "Bridge-managed construction",
        OWN,
    ),
    (error("ValueError: LoRA target modules ['x'] not found", frames=("lora.py:transform",)), True, "LoRA", OWN),
    (
        error("KeyError: 'visual.weight'", "checkpoint_missing_keys", frames=("worker.py:save_checkpoint",)),
        True,
        "checkpoint save/load",
        OWN,
    ),
    (error("Could not override 'a.b'.", "config_hydra"), False, "verl's configuration", ENV),
    (error("RuntimeError: who knows"), True, "the training step", OWN),
    (error("RuntimeError: who knows"), False, "the start of the job", ENV),
    (
        error("(raylet) node running low on memory", "host_oom_killed"),
        True,
        "the host's or the container's memory",
        ENV,
    ),
    (error("Watchdog caught collective operation timeout: WorkNCCL(…)"), True, "communication between GPUs", UNCLEAR),
    (error("ActorDiedError: The actor died unexpectedly"), True, "the death of a process", UNCLEAR),
    (error("huggingface_hub.errors.HfHubHTTPError: 504"), True, "the download of a model or data", ENV),
]


def test_a_failure_has_a_stage_and_an_owner() -> None:
    located = [(case, locate_failure(*case[:2])) for case in CASES]
    assert [(found.stage.name, found.owner) for _, found in located] == [case[2:] for case, _ in located]


def test_an_error_about_the_reward_models_own_path_is_the_reward_models() -> None:
    triaged = error("ValueError: Invalid repository ID or local directory specified: '/models/rm'.")
    assert locate_failure(triaged, True, ["", "/models/rm"]).stage.name == "the reward model"
    assert locate_failure(triaged, True, ["/other"]).stage.name == "the training step"


def test_a_failure_without_a_word_is_judged_by_how_far_it_came() -> None:
    assert [locate_failure(None, constructed).owner for constructed in (False, True)] == [ENV, UNCLEAR]


@pytest.mark.parametrize(
    ("key", "text", "stage"),
    [
        ("model", "OSError: [Errno 28] No space left on device", "a full disk"),
        ("model", "401 Client Error", "the download of a model or data"),
        ("import-driver", "ModuleNotFoundError: No module named 'modelopt'", "nvidia-modelopt"),
        (
            "import-worker",
            "/usr/lib/site-packages/megatron/bridge/__init__.py",
            "the import of the local Bridge checkout",
        ),
        ("import-worker", "No module named 'megatron.bridge.models.x'", "the Bridge checkout's own imports"),
        ("room", "12 GB free", "a full disk"),
    ],
)
def test_a_check_of_the_preflight_has_a_stage(key: str, text: str, stage: str) -> None:
    assert stage_of_check(key, text).name == stage


def test_a_stopped_run_has_a_stage_by_its_reason() -> None:
    reason = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock"
    assert stage_of_reason(reason).name == "the container or its image"
    assert stage_of_reason("the host was not seen for an hour").name == "the cluster"


def test_every_stage_says_what_to_do_next() -> None:
    assert all(stage.follow_up for stage in STAGES)
    assert len({stage.name for stage in STAGES}) == len(STAGES)
