"""What expressions come to: a tree and the contexts give a value; so do templates with `${{ }}` and `if:` conditions.

What depends on a value that only GitHub knows is Unknown, and names it. What does not, such as the other side of `false
&& …`, has its value.

A secret is a mark for its value, which a comparison needs: it asks the `secrets` context. Only its result leaves.

How `if:` gets its implicit success() is learnt from actions/runner's C# source (`ConvertToIfCondition`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ci_tasks.agent.quick_dataclass import dataclass

from .functions import FUNCTIONS, STATUS_FUNCTIONS, FunctionError
from .nodes import Binary, Call, Context, ExpressionError, Index, Literal, Node, Property, Unary, Wildcard
from .syntax import parse
from .templates import calls_status, condition_expression, split
from .values import (
    OpenObject,
    Unknown,
    Value,
    combined,
    index,
    kind,
    less,
    lookup,
    loose_equal,
    settled,
    shown,
    to_string,
    truth,
    unknowns,
    wildcard,
)


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
    """The value of a YAML scalar: typed if it is one `${{ }}` and nothing else, otherwise a string, or Unknown.

    Raises ExpressionError for an unclosed `${{` and whatever `evaluate` raises it for.
    """
    parts = split(template)
    values = [evaluate(part.text, contexts, status) if part.is_expression else part.text for part in parts]
    if len(values) == 1:
        return values[0]
    if any(isinstance(value, Unknown) for value in values):
        return combined(values, text="".join(map(shown, values)))
    return "".join(map(to_string, values))


def condition(text: str, contexts: Mapping[str, Value], status: JobStatus = SUCCESS) -> bool | Unknown:
    """Whether an `if:` lets its job or step run; `${{ }}` is optional, and no text means success().

    Without a call of a status function it is `success() && (…)`. Text beside `${{ }}`, be it a newline, makes the
    whole a non-empty string and hence true, as on GitHub. Raises ExpressionError as `interpolate` does.
    """
    expression = condition_expression(text)
    if not expression.strip():
        return status.success
    evaluation = _Evaluation(expression, contexts, status)
    tree = parse(expression)
    if not (status.success or calls_status(tree)):
        return False
    value = evaluation.value(tree)
    holds = truth(value)
    return combined([value]) if holds is None else holds


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
                value = self.value(operand)
                holds = truth(value)
                return combined([value]) if holds is None else not holds
            case Binary():
                return self._binary(node)

    def _index(self, of: Node, key: Value) -> Value:
        # The runner's env is the one context that minds case, on Linux (its CaseSensitiveDictionaryContextData).
        return index(self.value(of), self._compared(key), exact=of == Context("env"))

    def _compared(self, value: Value, other: Value = False) -> Value:
        """The value for a comparison with `other`."""
        secrets = self.contexts.get("secrets")
        if not (isinstance(secrets, OpenObject) and isinstance(value, str)):
            return value
        text = secrets.compared(value)
        # Whatever its value is, a secret that is set is not empty.
        return value if isinstance(text, Unknown) and (other is None or other == "") else text

    def _binary(self, node: Binary) -> Value:
        if node.op in ("&&", "||"):
            return self._chain(node)
        left, right = settled(self.value(node.left)), settled(self.value(node.right))
        left, right = self._compared(left, right), self._compared(right, left)
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return combined([side for side in (left, right) if isinstance(side, Unknown)])
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
        decisive = node.op == "||"  # the truth value that ends the chain
        undecided: list[Value] = []
        value = self.value(first)
        while rest and truth(value) is not decisive:
            if truth(value) is None:
                undecided.append(value)
            value = self.value(rest.pop())
        if not undecided:
            return value
        # An operand before this one may be the chain's value, but cannot change that the chain is decided.
        holds = decisive if truth(value) is decisive else None
        return combined([*undecided, value], holds=holds)

    def _call(self, call: Call) -> Value:
        if call.name in STATUS_FUNCTIONS:
            return call.name == "always" or bool(getattr(self.status, call.name))
        if call.name == "case":
            return self._case(call)
        function = FUNCTIONS[call.name.lower()]
        assert function.body is not None, f"{call.name} is evaluated above"
        arguments = [self.value(argument) for argument in call.arguments]
        if function.tests:
            arguments = [self._compared(settled(argument)) for argument in arguments]
            arguments = [list(map(self._compared, item)) if isinstance(item, list) else item for item in arguments]
        if call.name == "contains" and isinstance(arguments[0], list) and not isinstance(arguments[1], Unknown):
            known = [member for member in arguments[0] if not isinstance(member, Unknown)]
            if function.body(known, arguments[1]):
                return True
        if any(True for argument in arguments for _ in unknowns(argument)):
            return combined(arguments)
        try:
            return function.body(*arguments)
        except FunctionError as error:
            raise ExpressionError(str(error), self.text, call.position) from None

    def _case(self, call: Call) -> Value:
        *pairs, default = call.arguments
        for predicate, result in zip(pairs[::2], pairs[1::2], strict=True):
            holds = settled(self.value(predicate))
            if isinstance(holds, Unknown):
                return combined([holds])
            if not isinstance(holds, bool):
                message = f"case: a condition must be a boolean, not {kind(holds).lower()}"
                raise ExpressionError(message, self.text, call.position)
            if holds:
                return self.value(result)
        return self.value(default)
