"""From a fresh clone to the first rows that pass: what this machine needs for the CPU labels of a checkout."""

from ci_tasks.registry import Command, Feature

_SUMMARY = "Make the checkout's CPU labels run on this machine."
_JSON = (f"{__name__}.setup:SetupResult",)
_CODES = "ci_tasks.records:EXIT_CODES"
_COMMAND = Command("setup", "Run a CI label", _SUMMARY, f"{__name__}.setup:setup", _JSON, _CODES)
FEATURE = Feature("setup", commands=(_COMMAND,))
