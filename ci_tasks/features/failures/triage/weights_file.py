"""Where the weights are read from: weights.json beside this module, or the file that CI_TASKS_TRIAGE_WEIGHTS names."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

from ci_tasks import resources
from ci_tasks.errors import UsageError
from ci_tasks.features.failures.triage.weights import Weights, parse_weights

FILE = "features/failures/triage/weights.json"
VARIABLE = "CI_TASKS_TRIAGE_WEIGHTS"


def shipped_weights() -> Weights:
    """Those that ship, or those of the file that the variable names. Raises UsageError."""
    return _read(os.environ.get(VARIABLE, ""))


@functools.cache
def _read(path: str) -> Weights:
    try:
        return parse_weights(json.loads(Path(path).read_text("utf-8") if path else resources.text(FILE)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path or FILE} has no weights: {error}", hint=f"{VARIABLE} names such a file") from error
