"""What expressions come to: a tree and the contexts give a value; so do templates with `${{ }}` and `if:` conditions.

Also what can be said of an expression without evaluating it: the contexts it reads, the PR labels it asks for, whether
it calls a status function. How `if:` gets its implicit success(), and that text around `${{ }}` makes it a format()
call, is learnt from actions/runner's C# source (`TemplateReader.ParseScalar`, `ConvertToIfCondition`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .functions import FUNCTIONS, STATUS_FUNCTIONS, FunctionError
from .syntax import (
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
    children,
    parse,
    walk,
)
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
    parts = _split(template)
    values = [evaluate(part.text, contexts, status) if part.is_expression else part.text for part in parts]
    return values[0] if len(values) == 1 else "".join(map(to_string, values))


def condition(text: str, contexts: Mapping[str, Value], status: JobStatus = SUCCESS) -> bool:
    """Whether an `if:` lets its job or step run; `${{ }}` is optional, and no text means success().

    Without a call of a status function it is `success() && (…)`. Text beside `${{ }}`, be it a newline, makes the
    whole a non-empty string and hence true, as on GitHub. Raises ExpressionError as `interpolate` does.
    """
    expression = _condition_expression(text)
    if not expression.strip():
        return status.success
    evaluation = _Evaluation(expression, contexts, status)
    tree = parse(expression)
    return (status.success or _calls_status(tree)) and truthy(evaluation.value(tree))


def uses_status(text: str) -> bool:
    """Whether an `if:` calls success(), failure(), always() or cancelled(), and so does without the implicit success().

    Raises ExpressionError where the text does not parse.
    """
    expression = _condition_expression(text)
    return bool(expression.strip()) and _calls_status(parse(expression))


def references(template: str) -> list[str]:
    """What the `${{ }}` parts of a YAML scalar read, as dotted names, each once, in the order of the text.

    A name ends at a wildcard or at an index that is no constant. Raises ExpressionError as `interpolate` does.
    """
    trees = [parse(part.text) for part in _split(template) if part.is_expression]
    return list(dict.fromkeys(map(".".join, _paths(trees))))


def label_tests(text: str) -> list[str]:
    """The labels an `if:` asks the pull request for, as `contains(github.event.pull_request.labels.*.name, 'label')`.

    Each once, in the order of the text, those under a `!` too. Raises ExpressionError where the text does not parse.
    """
    expression = _condition_expression(text)
    calls = walk(parse(expression)) if expression.strip() else iter(())
    return list(dict.fromkeys(label for node in calls for label in _tested_label(node)))


class _Part(NamedTuple):
    text: str
    is_expression: bool


def _split(template: str) -> list[_Part]:
    """The literal text and the expressions of a template; one empty text for an empty template."""
    parts = []
    end = 0
    while (start := template.find("${{", end)) >= 0:
        if start > end:
            parts.append(_Part(template[end:start], False))
        end = _closing(template, start)
        parts.append(_Part(template[start + 3 : end - 2].strip(), True))
    if end < len(template) or not parts:
        parts.append(_Part(template[end:], False))
    return parts


def _closing(template: str, start: int) -> int:
    """Where the expression that starts here is over: behind the first }} outside a string."""
    # A doubled quote inside a string closes and opens it again, so that it needs no rule of its own.
    in_string = False
    for position in range(start + 3, len(template)):
        if template[position] == "'":
            in_string = not in_string
        elif not in_string and template.startswith("}}", position):
            return position + 2
    raise ExpressionError("'${{' is not closed by '}}'", template, start)


def _condition_expression(text: str) -> str:
    """The one expression that GitHub makes of an `if:`, checked part by part so that errors show the part's text."""
    parts = _split(text)
    trees = [parse(part.text) for part in parts if part.is_expression]
    if len(parts) == 1:
        # GitHub takes `${{ 'text' }}` for the plain scalar `text`, and then reads that as an expression.
        literal = trees[0].value if trees and isinstance(trees[0], Literal) else None
        return literal if isinstance(literal, str) else parts[0].text
    numbers = iter(range(len(parts)))
    template = "".join(f"{{{next(numbers)}}}" if part.is_expression else _format_text(part.text) for part in parts)
    return ", ".join([f"format('{template}'", *(part.text for part in parts if part.is_expression)]) + ")"


def _format_text(text: str) -> str:
    return text.replace("'", "''").replace("{", "{{").replace("}", "}}")


def _calls_status(tree: Node) -> bool:
    return any(isinstance(node, Call) and node.name in STATUS_FUNCTIONS for node in walk(tree))


def _paths(trees: list[Node]) -> Iterator[list[str]]:
    pending = trees[::-1]
    while pending:
        node = pending.pop()
        path = _static_path(node)
        if path:
            yield path
        else:
            pending.extend(reversed(children(node)))


def _static_path(node: Node) -> list[str]:
    """`github.event['action']` as its names; empty for what is no such chain."""
    path: list[str] = []
    while True:
        match node:
            case Context(name):
                return [name, *reversed(path)]
            case Property(of, name):
                path.append(name)
                node = of
            case Index(of, Literal(key)):
                path.append(to_string(key))
                node = of
            case _:
                return []


def _tested_label(node: Node) -> list[str]:
    match node:
        case Call("contains", (Property(Wildcard(labels), name), Literal(str(label)))) if name.lower() == "name":
            path = ".".join(_static_path(labels)).lower()
            return [label] if path == "github.event.pull_request.labels" else []
    return []


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
