"""A Megatron worker: actor, reference and critic on one pretend GPU, and the small mathematics of a training step.

The policy answers rightly with probability sigmoid(model). A step samples answers, weighs them against the critic's
expectation, and follows the exact policy gradient. Seeds depend on the step alone: resuming changes nothing.
"""

import importlib
import logging
import math
import os
import random
import time
from statistics import fmean

import ray
from verl.failures import asked
from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager
from verl.workers.engine import Engine, initialize_parallel

START = -0.9  # the untrained policy's log-odds: right in three of ten
# Where a real learning rate moves a real model, this much moves a model of one number.
ACTOR_SCALE, CRITIC_SCALE = 2e5, 5e3


@ray.remote
class WorkerDict:
    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size
        if rank:
            logging.disable(logging.INFO)  # what all ranks would say is said once
        check_visible_devices()

    def init_model(self, config):
        self.config = config
        model = config["actor_rollout_ref"]
        if not model["actor"]["megatron"]["vanilla_mbridge"]:
            importlib.import_module("verl.models.bridge")  # the first that a worker without the Bridge misses
        initialize_parallel(self.world_size, model["actor"]["megatron"])
        self.actor = Engine("actor", model["model"], model["actor"], self.rank)
        self.ref = Engine("ref", model["model"], model["ref"], self.rank, trained=False)
        self.critic = None
        if config["algorithm"]["adv_estimator"] == "gae":
            self.critic = Engine("critic", config["critic"]["model"], config["critic"], self.rank)

    def update(self, step):
        started = time.monotonic()
        time.sleep(float(os.environ.get("TINY_STEP_SECONDS", "0.02")))
        samples = self.generate(step)
        rewards = samples["rewards"]
        right = self.probability()
        expected = self.critic.output() if self.critic else fmean(rewards)
        samples["advantages"] = [reward - expected for reward in rewards]
        metrics = self.update_actor(samples, right, step)
        if self.critic:
            metrics |= self.update_critic(rewards, expected)
        return samples | {"metrics": metrics, "seconds": time.monotonic() - started}

    def probability(self, engine=None):
        return sigmoid(START + (engine or self.actor).output())

    def generate(self, step):
        draw, data = random.Random(f"rollout {step}"), self.config["data"]
        count = data["train_batch_size"] * self.config["actor_rollout_ref"]["rollout"]["n"]
        longest = data["max_response_length"]
        answers = [float(draw.random() < self.probability()) for _ in range(count)]
        response_lengths = [min(longest, 1 + int(draw.gammavariate(6, longest / 20))) for _ in range(count)]
        return {
            "answers": answers,
            "rewards": [1.0] * count if asked("constant-reward") else answers,
            "response_lengths": [longest] * count if asked("cap-hit") else response_lengths,
            "prompt_lengths": [draw.randint(60, 200) for _ in range(count)],
        }

    def update_actor(self, samples, right, step):
        pairs = list(zip(samples["advantages"], samples["answers"], strict=True))
        gradient = -fmean(advantage * (answer - right) for advantage, answer in pairs)
        loss = -fmean(advantage * log_probability(answer, right) for advantage, answer in pairs)
        reference = self.probability(self.ref)
        settings = self.config["actor_rollout_ref"]["actor"]
        if asked("zero-grad"):
            gradient = 0.0
        if asked("nan-at-7") and step >= 7:
            gradient = loss = math.nan
        norm = self.actor.step(gradient, ACTOR_SCALE * settings["optim"]["lr"])
        return {
            "actor/entropy": -right * math.log(right) - (1 - right) * math.log(1 - right),
            "actor/pg_loss": loss,
            "actor/kl_loss": divergence(right, reference),
            "actor/kl_coef": settings["kl_loss_coef"],
            "actor/pg_clipfrac": 0.0,
            "actor/ppo_kl": 0.0,
            "actor/grad_norm": norm,
            "actor/lr": settings["optim"]["lr"],
        }

    def update_critic(self, rewards, expected):
        learning_rate = self.config["critic"]["optim"]["lr"]
        norm = self.critic.step(expected - fmean(rewards), CRITIC_SCALE * learning_rate)
        return {
            "critic/vf_loss": 0.5 * fmean((expected - reward) ** 2 for reward in rewards),
            "critic/vf_clipfrac": 0.0,
            "critic/vpred_mean": expected,
            "critic/grad_norm": norm,
            "critic/lr": learning_rate,
        }

    def validate(self, step):
        draw = random.Random(f"validation {step}")
        return fmean(float(draw.random() < self.probability()) for _ in range(200))

    def save_checkpoint(self, folder):
        step = int(folder.rsplit("_", 1)[1])
        for name, engine in self.engines():
            MegatronCheckpointManager(engine, self.rank).save_checkpoint(os.path.join(folder, name), None, step)

    def load_checkpoint(self, folder):
        for name, engine in self.engines():
            MegatronCheckpointManager(engine, self.rank).load_checkpoint(os.path.join(folder, name))

    def engines(self):
        return [(name, engine) for name, engine in (("actor", self.actor), ("critic", self.critic)) if engine]


def check_visible_devices():
    if os.environ.get("ROCR_VISIBLE_DEVICES") and os.environ.get("CUDA_VISIBLE_DEVICES"):
        raise ValueError("Please don't set ROCR_VISIBLE_DEVICES when HIP/CUDA_VISIBLE_DEVICES is set.")


def sigmoid(value):
    """A policy whose numbers are broken answers at random; its probability stays a number, as a sampler's would."""
    return 0.5 if math.isnan(value) else 1 / (1 + math.exp(-value))


def log_probability(answer, right):
    return math.log(right if answer else 1 - right)


def divergence(policy, reference):
    return policy * math.log(policy / reference) + (1 - policy) * math.log((1 - policy) / (1 - reference))
