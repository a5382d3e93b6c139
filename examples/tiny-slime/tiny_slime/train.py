"""A pretend trainer: a policy over four answers learns the right one by policy gradient, and logs as slime does.

The mathematics is real and small (softmax, Adam, KL to the reference), so that the checks of `--ci-test` can really
fail; the GPUs are numbers from CUDA_VISIBLE_DEVICES, and TINY_STEP_SECONDS of sleep stands for their work.
The same seed gives the same numbers, with any count of GPUs and across a checkpoint.
"""

import argparse
import json
import logging
import math
import os
import random
import sys
import time
from pathlib import Path

from tiny_slime import checkpoint
from tiny_slime.metrics import kl_divergence, l2_norm, mean, pass_rate, with_prefix
from tiny_slime.plugins import load_function
from tiny_slime.pretend_torch import Device
from tiny_slime.rewards import group_advantages
from tiny_slime.sampling import choose, softmax, split_batch, stop_at

LABEL = "42"
RESPONSES = ["I guess the answer is 7.", "The answer is 12.", "So the answer is 42.", "I do not know."]
RESPONSES = [response + "<|end|> and so on" for response in RESPONSES]
LAYERS = 4
WEIGHTS_GIB = 40.0
ACTIVATION_GIB = 0.1  # of one sample in one layer
KL_LIMIT = 1e-8
LOGPROB_DIFF_LIMIT = 0.01

manager_log = logging.getLogger("rollout_manager")
actor_log = logging.getLogger("train_actor")


def main():
    args = parse_args()
    configure_logs()
    gpus = visible_gpus(args.num_gpus)
    model = json.loads(Path(args.model, "config.json").read_text())
    if args.ref_load:
        model["reference"] = json.loads(Path(args.ref_load, "config.json").read_text())["logits"]
    state = initial_state(args, model)
    place_engines(args, gpus)
    reward = load_function(args.reward_function, ("response", "label"))
    pending_save = None
    for rollout_id in range(state["step"], state["step"] + args.num_rollout):
        samples = generate(args, state, rollout_id, reward)
        step_metrics = train_step(args, state, model, samples, gpus)
        check(args, state["step"], step_metrics)
        actor_log.info(f"step {state['step']}: {step_metrics | {'train/step': state['step']}}")
        if args.dump_metrics:
            with open(args.dump_metrics, "a") as dump:
                dump.write(json.dumps(step_metrics) + "\n")
        state["step"] += 1
        if args.save and state["step"] % args.save_interval == 0:
            pending_save = save(args, state, pending_save)
        if args.eval_interval and state["step"] % args.eval_interval == 0:
            manager_log.info(f"eval {rollout_id}: {{'eval/tiny_math': {softmax(state['logits'])[2]}}}")
    if pending_save:
        pending_save.join()


def parse_args():
    parser = argparse.ArgumentParser(prog="tiny_slime.train")
    parser.add_argument("--model", required=True, help="directory with a config.json")
    parser.add_argument("--ref-load", metavar="DIR", help="the reference model, where it is not the one to train")
    parser.add_argument("--num-gpus", type=int, required=True)
    parser.add_argument("--num-rollout", type=int, default=3)
    parser.add_argument("--rollout-batch-size", type=int, default=8)
    parser.add_argument("--n-samples-per-prompt", type=int, default=4)
    parser.add_argument("--advantage-estimator", choices=["grpo", "ppo"], default="grpo")
    parser.add_argument("--reward-function", default="tiny_slime.rewards.exact_match")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--kl-loss-coef", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--eval-interval", type=int, default=0)
    parser.add_argument("--optimizer-placement", choices=["cpu", "gpu"], default="gpu")
    parser.add_argument("--use-rollout-routing-replay", action="store_true")
    parser.add_argument("--sglang-config", help="JSON file: the GPU count of each engine")
    parser.add_argument("--offload-rollout", action="store_true")
    parser.add_argument("--save", metavar="DIR")
    parser.add_argument("--save-interval", type=int, default=2)
    parser.add_argument("--async-save", action="store_true")
    parser.add_argument("--load", metavar="DIR")
    parser.add_argument("--dump-metrics", metavar="FILE", help="append each step's metrics as a JSON line")
    parser.add_argument("--ci-test", action="store_true", help="stop at numbers that a sound setup cannot give")
    return parser.parse_args()


def configure_logs():
    line = "[%(asctime)s] %(filename)s:%(lineno)d - %(message)s"
    for log, prefix in ((manager_log, ""), (actor_log, f"(TinyTrainActor pid={os.getpid()}) ")):
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter(prefix + line, datefmt="%Y-%m-%d %H:%M:%S"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def visible_gpus(wanted):
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = list(range(wanted)) if named is None else [int(gpu) for gpu in named.split(",") if gpu]
    if len(gpus) < wanted:
        raise RuntimeError(f"{wanted} GPUs wanted, but CUDA_VISIBLE_DEVICES is {named!r}")
    return gpus[:wanted]


def initial_state(args, model):
    if args.load:
        state = checkpoint.load(args.load)
        actor_log.info(f"loaded step {state['step']}: optimizer {state['placement']} -> {args.optimizer_placement}")
    else:
        zeros = [0.0] * len(RESPONSES)
        state = {"step": 0, "logits": model["logits"], "m": zeros, "v": zeros, "value": 0.0}
    return state | {"placement": args.optimizer_placement}


def place_engines(args, gpus):
    sizes = json.loads(Path(args.sglang_config).read_text())["engine_gpus"] if args.sglang_config else [len(gpus)]
    if sum(sizes) != len(gpus):
        raise ValueError(f"engines of {sizes} GPUs do not fill {len(gpus)} GPUs")
    for number, size in enumerate(sizes):
        first = sum(sizes[:number])
        manager_log.info(f"engine {number} on GPUs {gpus[first : first + size]}")


def generate(args, state, rollout_id, reward):
    """[(choice, advantage, value target)] of one rollout."""
    rng = random.Random(f"{args.seed}/{rollout_id}")
    probs = softmax(state["logits"])
    samples, rewards = [], []
    for _ in range(args.rollout_batch_size):
        choices = [choose(probs, rng.random()) for _ in range(args.n_samples_per_prompt)]
        group = [reward(stop_at(RESPONSES[choice], ["<|end|>"]), LABEL) for choice in choices]
        grpo = args.advantage_estimator == "grpo"
        advantages = group_advantages(group) if grpo else [value - state["value"] for value in group]
        samples += zip(choices, advantages, group, strict=True)
        rewards += group
    numbers = {"raw_reward": mean(rewards), "pass_rate": pass_rate(rewards, args.n_samples_per_prompt)}
    manager_log.info(f"rollout {rollout_id}: {with_prefix(numbers, 'rollout')}")
    if args.offload_rollout:
        manager_log.info(f"offloaded the engines after rollout {rollout_id}")
    return samples


def train_step(args, state, model, samples, gpus):
    time.sleep(float(os.environ.get("TINY_STEP_SECONDS", "0.2")))
    probs, reference = softmax(state["logits"]), softmax(model.get("reference", model["logits"]))
    kl = kl_divergence(probs, reference)
    # Each GPU takes its part of the batch; their sums are then added, as an all-reduce would.
    shares = split_batch(samples, len(gpus))
    for ordinal, share in enumerate(shares):
        forward(Device(ordinal, WEIGHTS_GIB), share)
    parts = [gradient(share, probs) for share in shares]
    pull = [p * (math.log(p / q) - kl) for p, q in zip(probs, reference, strict=True)]
    grads = [
        sum(column) / len(samples) + args.kl_loss_coef * toward
        for column, toward in zip(zip(*parts, strict=True), pull, strict=True)
    ]
    if args.advantage_estimator == "ppo":
        train_critic(state, [target for _, _, target in samples])
    adam(state, grads, args.lr)
    # Engines score with fewer digits than the trainer. Mixture-of-experts routing makes that worse, unless replayed.
    digits = 1 if model["experts"] and not args.use_rollout_routing_replay else 3
    return {
        "train/loss": -mean([advantage * math.log(probs[choice]) for choice, advantage, _ in samples]),
        "train/grad_norm": l2_norm(grads),
        "train/kl_loss": kl,
        "train/train_rollout_logprob_abs_diff": mean([abs(math.log(p) - round(math.log(p), digits)) for p in probs]),
    }


def forward(device, samples):
    for _ in range(LAYERS):
        device.allocate(len(samples) * ACTIVATION_GIB)


def gradient(samples, probs):
    total = [0.0] * len(probs)
    for choice, advantage, _ in samples:
        for index, prob in enumerate(probs):
            total[index] -= advantage * ((index == choice) - prob)
    return total


def train_critic(state, targets):
    error = mean(targets) - state["value"]
    state["value"] += 0.5 * error
    actor_log.info(f"critic-step {state['step']}: {{'train/critic-value_loss': {error * error}}}")


def adam(state, grads, lr, beta1=0.9, beta2=0.98):
    count = state["step"] + 1
    state["m"] = [beta1 * m + (1 - beta1) * g for m, g in zip(state["m"], grads, strict=True)]
    state["v"] = [beta2 * v + (1 - beta2) * g * g for v, g in zip(state["v"], grads, strict=True)]
    state["logits"] = [
        logit - lr * (m / (1 - beta1**count)) / (math.sqrt(v / (1 - beta2**count)) + 1e-8)
        for logit, m, v in zip(state["logits"], state["m"], state["v"], strict=True)
    ]


def check(args, step, metrics):
    if not args.ci_test:
        return
    difference = metrics["train/train_rollout_logprob_abs_diff"]
    assert difference <= LOGPROB_DIFF_LIMIT, f"engines and trainer disagree at step {step}: {metrics=}"
    if step == 0:
        assert metrics["train/kl_loss"] < KL_LIMIT, f"the policy is not its reference at step 0: {metrics=}"


def save(args, state, pending):
    """Save, and return the thread to wait for, if any. Saves never overlap: the latest must be named last."""
    if pending:
        pending.join()
    how = "in the background" if args.async_save else "now"
    actor_log.info(f"saving step {state['step']} {how}: optimizer {state['placement']}")
    if args.async_save:
        return checkpoint.save_in_background(args.save, state)
    checkpoint.save(args.save, state)
    return None


if __name__ == "__main__":
    main()
