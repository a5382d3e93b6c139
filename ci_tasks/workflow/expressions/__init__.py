"""GitHub Actions expressions: what `${{ … }}` and `if:` come to, given the contexts.

The room knows the tree (nodes), the grammar (syntax), the values and their coercions (values), the functions
(functions), text with `${{ }}` in it (templates) and evaluation (evaluate). It knows no workflow, no file and no clock:
contexts and the job's status are passed in.
"""

from .evaluate import JobStatus, condition, evaluate, interpolate
from .nodes import Binary, Call, Context, ExpressionError, Index, Literal, Node, Property, Unary, Wildcard, walk
from .syntax import CONTEXTS, parse
from .templates import label_tests, references, uses_status
from .values import OpenObject, Unknown, Value, lookup, loose_equal, shown, to_string, truthy, unknowns

__all__ = [
    "CONTEXTS",
    "Binary",
    "Call",
    "Context",
    "ExpressionError",
    "Index",
    "JobStatus",
    "Literal",
    "Node",
    "OpenObject",
    "Property",
    "Unary",
    "Unknown",
    "Value",
    "Wildcard",
    "condition",
    "evaluate",
    "interpolate",
    "label_tests",
    "lookup",
    "loose_equal",
    "parse",
    "references",
    "shown",
    "to_string",
    "truthy",
    "unknowns",
    "uses_status",
    "walk",
]
