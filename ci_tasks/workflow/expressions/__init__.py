"""GitHub Actions expressions: what `${{ … }}` and `if:` come to, given the contexts.

The room knows the language (syntax), the values and their coercions (values), the functions (functions) and evaluation
(evaluate). It knows no workflow, no file and no clock: contexts and the job's status are passed in.
"""

from .evaluate import JobStatus, condition, evaluate, interpolate, label_tests, references, uses_status
from .syntax import (
    CONTEXTS,
    Binary,
    Call,
    Context,
    ExpressionError,
    Index,
    Literal,
    Node,
    Property,
    Unary,
    Wildcard,
    parse,
    walk,
)
from .values import Value, to_string, truthy

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
    "Property",
    "Unary",
    "Value",
    "Wildcard",
    "condition",
    "evaluate",
    "interpolate",
    "label_tests",
    "parse",
    "references",
    "to_string",
    "truthy",
    "uses_status",
    "walk",
]
