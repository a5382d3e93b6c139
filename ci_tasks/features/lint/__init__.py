"""Problems of a checkout's CI that can be seen before anything runs."""

from ci_tasks.registry import Command, Feature

_SUMMARY = "Check the checkout's CI for mistakes before anything runs."
_JSON = (f"{__name__}.rules:LintFinding[]",)
_CODES = f"{__name__}.command:EXIT_CODES"
_COMMAND = Command("lint", "Before a run", _SUMMARY, f"{__name__}.command:lint", _JSON, _CODES)
FEATURE = Feature("lint", commands=(_COMMAND,))
