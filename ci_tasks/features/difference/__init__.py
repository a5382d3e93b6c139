"""What changed between two runs of a row: what went in, what came out, and what may have caused it."""

from ci_tasks.registry import Command, Feature

_SUMMARY = "Show what differs between two runs, or from golden values."
_JSON = (f"{__name__}.compare:RunDifference", f"{__name__}.values:ValuesComparison")
_COMMAND = Command("diff", "Results", _SUMMARY, f"{__name__}.command:diff", _JSON, f"{__name__}.values:EXIT_CODES")
FEATURE = Feature("difference", commands=(_COMMAND,))
