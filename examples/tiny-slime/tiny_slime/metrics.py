"""Numbers about a rollout or a training step; lists of floats in, floats out."""

import math


def mean(values):
    return math.fsum(values) / len(values) if values else 0.0


def l2_norm(values):
    return math.sqrt(math.fsum(value * value for value in values))


def kl_divergence(probs, reference):
    return math.fsum(p * math.log(p / q) for p, q in zip(probs, reference, strict=True) if p > 0)


def pass_rate(rewards, group_size):
    """The share of prompts for which at least one of `group_size` samples was rewarded."""
    if len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards are not groups of {group_size}")
    groups = [rewards[start : start + group_size] for start in range(0, len(rewards), group_size)]
    return mean([float(any(reward > 0 for reward in group)) for group in groups])


def with_prefix(metrics, prefix):
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
