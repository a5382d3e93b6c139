"""The words of a triage's verdict and of the causes that no rule has. The answer itself is `records.Triage`."""

from ci_tasks.records import Triage

FAIL, BLOCKED, PASS = "fail", "blocked", "pass"
UNKNOWN = "unknown"
TIMEOUT_HANG = "timeout_hang"

NOT_SEEN = Triage(UNKNOWN, UNKNOWN, None, "", "", 0.0)
"""Of a log whose end was not read, and that shows no failure until there."""

NOT_ANALYSED = Triage(UNKNOWN, FAIL, None, "", "", 0.0)
"""Of a log at which nobody looked."""
