"""Pretend inference servers: they only start, or say why they cannot."""

import logging
import os

import ray
from verl.failures import asked

logger = logging.getLogger(__name__)


class Server:
    engine = "engine"

    def launch(self, model_path, settings):
        if self.engine == "vllm":
            logger.info(f"Initializing a V1 LLM engine (v0.11.0) with config: model={model_path!r}")
        if asked("rollout-first"):
            fail_to_start()
        if not settings["enforce_eager"]:
            logger.info("Graph capturing finished in 0 secs, took 0.13 GiB")

    def launch_reward_model(self, model_path, settings):
        if self.engine == "vllm":
            logger.info(f"Initializing a V1 LLM engine (v0.11.0) with config: model={model_path!r}, task='reward'")
        if asked("missing-reward-model") or not os.path.isdir(model_path):
            raise ValueError(
                f"Invalid repository ID or local directory specified: '{model_path}'.\n"
                "Please verify the following requirements:\n1. Provide a valid Hugging Face repository ID.\n"
                "2. Specify a local directory that contains a recognized configuration file."
            )


def fail_to_start():
    """An engine's core fails in its own process; its server only says that it did, and where to look."""
    try:
        raise ValueError(
            "Free memory on device (21.74/79.11 GiB) on startup is less than desired GPU memory utilization "
            "(0.6, 47.47 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        )
    except ValueError:
        logger.exception("(EngineCore_DP0 pid=4711) EngineCore failed to start.")
    raise RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")


@ray.remote
class vLLMHttpServer(Server):
    engine = "vllm"


@ray.remote
class SGLangHttpServer(Server):
    engine = "sglang"
