"""From logits to a choice, from text to a stopped text, from a batch to one part per GPU."""

import math


def softmax(logits, temperature=1.0):
    top = max(logits)
    weights = [math.exp((logit - top) / temperature) for logit in logits]
    return [weight / math.fsum(weights) for weight in weights]


def choose(probs, point):
    """The index into which `point` of [0, 1) falls when the probabilities are laid end to end."""
    reached = 0.0
    for index, prob in enumerate(probs):
        reached += prob
        if point < reached:
            return index
    return len(probs) - 1


def stop_at(text, stops):
    """`text` up to the earliest of `stops`."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def split_batch(items, parts):
    """`parts` runs of neighbours whose lengths differ by one at most; some are empty when there are few items."""
    size, extra = divmod(len(items), parts)
    starts = [part * size + min(part, extra) for part in range(parts + 1)]
    return [items[start:end] for start, end in zip(starts, starts[1:], strict=False)]
