"""GitHub Actions expressions: what `${{ … }}` and `if:` come to, given the contexts.

The folder knows the grammar (syntax), the values and their coercions (values), the functions (functions), and what a
text with `${{ }}` comes to (evaluate). It knows no workflow, no file and no clock: contexts and the job's status are
passed in.
"""

from .evaluate import JobStatus, condition, interpolate, label_tests, references, uses_status
from .syntax import ExpressionError
from .values import OpenObject, Unknown, Value, lookup, loose_equal, shown, to_string, unknowns

__all__ = [
    "ExpressionError",
    "JobStatus",
    "OpenObject",
    "Unknown",
    "Value",
    "condition",
    "interpolate",
    "label_tests",
    "lookup",
    "loose_equal",
    "references",
    "shown",
    "to_string",
    "unknowns",
    "uses_status",
]
