"""What failed, in one line of a log: the first that matters, its cause, and whether the code or the environment is
at fault.

`rules.yaml` knows what lines mean, `pieces` reads a log of any size, `lines` takes off what stands before a line's
text, `tracebacks` and `reader` gather candidates, `choose` picks one, `signature` says which failure it is.
"""

from ci_tasks.judge.triage.engine import triage
from ci_tasks.judge.triage.result import BLOCKED, FAIL, PASS, UNKNOWN, Blame, Triage

__all__ = ["BLOCKED", "FAIL", "PASS", "UNKNOWN", "Blame", "Triage", "triage"]
