"""GitHub Actions expressions: what `${{ … }}` and `if:` come to, given the contexts.

The room knows the tree (nodes), the grammar (syntax), the values and their coercions (values), the functions
(functions), text with `${{ }}` in it (templates) and evaluation (evaluate). It knows no workflow, no file and no clock:
contexts and the job's status are passed in.
"""

from .evaluate import JobStatus, condition, interpolate
from .nodes import ExpressionError
from .templates import label_tests, references, uses_status
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
