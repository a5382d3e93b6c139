"""Models and datasets on the host before a run holds its GPUs."""

from ci_tasks.registry import Command, Feature

_SUMMARY = "Download the models and datasets of a label's tests to the host."
_JSON = (f"{__name__}.prefetch:PrefetchReport",)
_COMMAND = Command("prefetch", "Before a run", _SUMMARY, f"{__name__}.prefetch:prefetch", _JSON)
_BEFORE_ROWS = f"{__name__}.prefetch:before_rows"
FEATURE = Feature("prefetch", needs=("recorder", "suites"), commands=(_COMMAND,), before_rows=_BEFORE_ROWS)
