"""What the checkout's CI covers."""

from ci_tasks.registry import Command, Feature

_SUMMARY = "Print what the checkout's CI covers, from the workflow and the test sources."
_JSON = (f"{__name__}.coverage:CheckoutCoverage", f"{__name__}.coverage:CoverageDiff")
_COMMAND = Command("coverage", "Before a run", _SUMMARY, f"{__name__}.command:coverage", _JSON)
FEATURE = Feature("coverage", needs=("recorder", "suites"), commands=(_COMMAND,))
