"""What expressions come to: a tree and the contexts give a value; so do templates with `${{ }}` and `if:` conditions.

How `if:` gets its implicit success() is learnt from actions/runner's C# source (`ConvertToIfCondition`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .functions import FUNCTIONS, STATUS_FUNCTIONS, FunctionError
from .nodes import Binary, Call, Context, ExpressionError, Index, Literal, Node, Property, Unary, Wildcard
from .syntax import parse
from .templates import calls_status, condition_expression, split
from .values import Value, index, kind, less, lookup, loose_equal, to_string, truthy, wildcard


@dataclass(frozen=True)
class JobStatus:
    """What success(), failure() and cancelled() return; always() is true whatever the status."""

    success: bool = True
    failure: bool = False
    cancelled: bool = False


SUCCESS = JobStatus()


def evaluate(text: str, contexts: Mapping[str, Value], status: JobStatus = SUCCESS) -> Value:
    """The value of an expression without its `${{ }}`; a context that is not in the mapping is null.

    Raises ExpressionError for what `parse` or a function refuses.
    """
    return _Evaluation(text, contexts, status).value(parse(text))


def interpolate(template: str, contexts: Mapping[str, Value], status: JobStatus = SUCCESS) -> Value:
    """The value of a YAML scalar: typed if it is one `${{ }}` and nothing else, otherwise a string.

    Raises ExpressionError for an unclosed `${{` and whatever `evaluate` raises it for.
    """
    parts = split(template)
    values = [evaluate(part.text, contexts, status) if part.is_expression else part.text for part in parts]
    return values[0] if len(values) == 1 else "".join(map(to_string, values))


def condition(text: str, contexts: Mapping[str, Value], status: JobStatus = SUCCESS) -> bool:
    """Whether an `if:` lets its job or step run; `${{ }}` is optional, and no text means success().

    Without a call of a status function it is `success() && (…)`. Text beside `${{ }}`, be it a newline, makes the
    whole a non-empty string and hence true, as on GitHub. Raises ExpressionError as `interpolate` does.
    """
    expression = condition_expression(text)
    if not expression.strip():
        return status.success
    evaluation = _Evaluation(expression, contexts, status)
    tree = parse(expression)
    return (status.success or calls_status(tree)) and truthy(evaluation.value(tree))


@dataclass(frozen=True)
class _Evaluation:
    text: str
    contexts: Mapping[str, Value]
    status: JobStatus

    def value(self, node: Node) -> Value:
        match node:
            case Literal(value):
                return value
            case Context(name):
                return next(iter(lookup(self.contexts, name)), None)
            case Property(of, name):
                return self._index(of, name)
            case Index(of, key):
                return self._index(of, self.value(key))
            case Wildcard(of):
                return wildcard(self.value(of))
            case Call():
                return self._call(node)
            case Unary(operand=operand):
                return not truthy(self.value(operand))
            case Binary():
                return self._binary(node)

    def _index(self, of: Node, key: Value) -> Value:
        # The runner's env is the one context that minds case, on Linux (its CaseSensitiveDictionaryContextData).
        return index(self.value(of), key, exact=of == Context("env"))

    def _binary(self, node: Binary) -> Value:
        if node.op in ("&&", "||"):
            return self._chain(node)
        left, right = self.value(node.left), self.value(node.right)
        match node.op:
            case "==":
                return loose_equal(left, right)
            case "!=":
                return not loose_equal(left, right)
            case "<":
                return less(left, right)
            case "<=":
                return loose_equal(left, right) or less(left, right)
            case ">":
                return less(right, left)
            case _:
                return loose_equal(left, right) or less(right, left)

    def _chain(self, node: Binary) -> Value:
        """The operand that decides a chain of && or ||. A loop, since chains may be longer than Python's stack."""
        first: Node = node
        rest: list[Node] = []
        while isinstance(first, Binary) and first.op == node.op:
            rest.append(first.right)
            first = first.left
        value = self.value(first)
        while rest and truthy(value) == (node.op == "&&"):
            value = self.value(rest.pop())
        return value

    def _call(self, call: Call) -> Value:
        if call.name in STATUS_FUNCTIONS:
            return call.name == "always" or bool(getattr(self.status, call.name))
        if call.name == "case":
            return self._case(call)
        body = FUNCTIONS[call.name.lower()].body
        assert body is not None, f"{call.name} is evaluated above"
        try:
            return body(*map(self.value, call.arguments))
        except FunctionError as error:
            raise ExpressionError(str(error), self.text, call.position) from None

    def _case(self, call: Call) -> Value:
        *pairs, default = call.arguments
        for predicate, result in zip(pairs[::2], pairs[1::2], strict=True):
            holds = self.value(predicate)
            if not isinstance(holds, bool):
                message = f"case: a condition must be a boolean, not {kind(holds).lower()}"
                raise ExpressionError(message, self.text, call.position)
            if holds:
                return self.value(result)
        return self.value(default)
