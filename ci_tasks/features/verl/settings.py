"""Two trainings' resolved settings, compared: what of them makes their curves incomparable. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Of a baseline: a run of another day, whose paths begin otherwise and whose other settings may be the change itself.
_BASELINE = re.compile(
    r"(actor_rollout_ref|critic)\.model\.path|.*seed|data\.(train_files|val_files|train_batch_size|max_\w+_length)"
    r"|actor_rollout_ref\.(actor\.ppo_(mini|micro)_batch_size\w*|rollout\.(n|response_length))|reward\..*model_path"
)


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Each setting by its dotted name, its value as text."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = repr(value)
    return found


def unlike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What of model, data, batch, response length and seed is not the same in a baseline (`theirs`), each as a line.
    Of a path its last two parts count."""
    return different("baseline", _comparable(theirs), _comparable(ours))


def _comparable(settings: Mapping[str, Any]) -> dict[str, str]:
    known = {name: value for name, value in flat(settings).items() if _BASELINE.fullmatch(name)}
    return {name: re.sub(r"[^'\",\[]*/([^/'\",]+/[^/'\",]+)", r"\1", value) for name, value in known.items()}


def different(side: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """The settings that `side` has otherwise, each as a line with its value there and here."""
    return [
        f"{name}: {side} {theirs.get(name, 'none')}, here {ours.get(name, 'none')}"
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name)
    ]
