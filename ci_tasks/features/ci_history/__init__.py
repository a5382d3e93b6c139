"""What CI's own last runs say of a failed job, or of rows, before a GPU is used."""

from ci_tasks.registry import Feature

_HISTORY = "ci_tasks.features.ci_history.history"
FEATURE = Feature(name="ci_history", ci_history=f"{_HISTORY}:ci_history", ci_row_history=f"{_HISTORY}:ci_row_history")
