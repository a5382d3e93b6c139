"""What a response is worth, and how rewards of one prompt become advantages."""

import re
from collections import Counter

from tiny_slime.metrics import l2_norm, mean


def final_answer(response):
    """The number after the last "answer is", without thousands separators; None where there is none."""
    found = re.findall(r"answer is\s+(-?[\d,]*\d)", response, re.IGNORECASE)
    return found[-1].replace(",", "") if found else None


def exact_match(response, label):
    return 1.0 if final_answer(response) == label else 0.0


def word_f1(response, label):
    words, wanted = response.lower().split(), label.lower().split()
    common = sum((Counter(words) & Counter(wanted)).values())
    return 2 * common / (len(words) + len(wanted)) if common else 0.0


def group_advantages(rewards):
    """Rewards of one prompt's samples, centred and scaled; all zero where every sample did equally well."""
    centred = [reward - mean(rewards) for reward in rewards]
    spread = l2_norm(centred) / len(rewards) ** 0.5
    return [value / spread if spread > 1e-6 else 0.0 for value in centred]
