"""A step's metrics under verl's names, and the line in which its console logger shows them."""

import os
from pprint import pformat
from statistics import fmean


def step_metrics(config, outcome, step):
    """`outcome` is what the first worker measured; what it lacks (a critic) is left out."""
    reduced = {name: Reduced(value) for name, value in outcome["metrics"].items()}
    return {
        **reduced,
        "training/global_step": step,
        "training/epoch": 0,
        **spread("critic/score", outcome["rewards"]),
        **spread("critic/rewards", outcome["rewards"]),
        **spread("critic/advantages", outcome["advantages"]),
        **spread("critic/returns", outcome["rewards"]),
        **lengths("response_length", outcome["response_lengths"], config["data"]["max_response_length"]),
        "response/aborted_ratio": 0.0,
        **lengths("prompt_length", outcome["prompt_lengths"], config["data"]["max_prompt_length"]),
        "timing_s/gen": outcome["seconds"] / 2,
        "timing_s/update_actor": outcome["seconds"] / 2,
        "timing_s/step": outcome["seconds"],
        "perf/total_num_tokens": sum(outcome["response_lengths"] + outcome["prompt_lengths"]),
    }


def validation_metrics(accuracy):
    return {"val-core/openai/gsm8k/acc/mean@1": Reduced(accuracy), "val-aux/num_turns/mean": Reduced(2.0)}


def spread(name, values):
    return {f"{name}/mean": fmean(values), f"{name}/max": max(values), f"{name}/min": min(values)}


def lengths(name, values, limit):
    clipped = fmean(float(value == limit) for value in values)
    return spread(name, [float(value) for value in values]) | {f"{name}/clip_ratio": clipped}


class Reduced(float):
    """verl averages some metrics with numpy, which since 2.0 prints its numbers so. TINY_NUMPY=1: as before."""

    def __repr__(self):
        plain = float.__repr__(self)
        return plain if os.environ.get("TINY_NUMPY") == "1" else f"np.float64({plain})"


def console_line(metrics, step):
    return " - ".join([f"step:{step}", *(f"{name}:{pformat(value)}" for name, value in metrics.items())])
