"""What CI's own last runs say of a failed job, before a GPU is used."""

from ci_tasks.registry import Feature

FEATURE = Feature(name="ci_history", ci_history="ci_tasks.features.ci_history.history:ci_history")
