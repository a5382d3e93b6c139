"""The driver: reads the settings, connects to Ray and waits for the task runner.

`python3 -m verl.trainer.main_ppo --config-path=config --config-name=NAME KEY=VALUE …`; exit code 1 for every failure.
"""

import json
import sys
import traceback
from pathlib import Path

import ray
from verl.failures import asked
from verl.trainer.overrides import OverrideError, resolved
from verl.trainer.ppo.noise import shutdown_noise
from verl.trainer.ppo.task_runner import TaskRunner, TaskRunnerV1

HINT = "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."


def main():
    sys.stdout.reconfigure(line_buffering=True)
    options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    defaults = json.loads(Path(__file__).with_name(options["config-path"]).joinpath(options["config-name"]).read_text())
    if asked("hydra"):
        del defaults["actor_rollout_ref"]["actor"]["megatron"]["use_megatron_fsdp"]
    try:
        config = resolved(defaults, words)
    except OverrideError as error:
        sys.exit(f"{error}\n{HINT}")
    try:
        run_ppo(config)
    except Exception:
        print(f"Error executing job with overrides: {words}", file=sys.stderr)
        traceback.print_exc()
        sys.exit(HINT)
    finally:
        ray.shutdown()
    shutdown_noise()


def run_ppo(config):
    arguments = config["ray_kwargs"]["ray_init"]
    variables = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "VLLM_LOGGING_LEVEL": "WARN"}
    runtime_env = arguments["runtime_env"]
    runtime_env = runtime_env | {"env_vars": variables | runtime_env.get("env_vars", {})}
    print(f"ray init kwargs: {arguments | {'runtime_env': runtime_env}}")
    ray.init(**arguments | {"runtime_env": runtime_env})
    runner = (TaskRunnerV1 if config["trainer"]["use_v1"] else TaskRunner).remote()
    ray.get(runner.run.remote(config))


if __name__ == "__main__":
    main()
