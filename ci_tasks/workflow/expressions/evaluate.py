"""What expressions come to: a tree and contexts give a value; so do YAML scalars with `${{ }}`, and `if:` conditions.

What depends on a value that only GitHub knows is Unknown, and names it. What does not, such as the other side of `false
&& …`, has its value. A secret is a mark for its value, which a comparison needs: it asks the `secrets` context. Only
its result leaves.

That text around `${{ }}` makes the whole a format() call, and how `if:` gets its implicit success(), is learnt from
actions/runner's C# source (`TemplateReader.ParseScalar`, `ConvertToIfCondition`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ci_tasks.agent.quick_dataclass import dataclass

from .functions import FUNCTIONS, STATUS_FUNCTIONS, FunctionError, joined
from .syntax import ExpressionError, Node, parse
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

    Raises ExpressionError for an unclosed `${{`, a text of more than 1 MB and whatever `evaluate` raises it for.
    """
    values = [evaluate(part.text, contexts, status) if part.is_expression else part.text for part in split(template)]
    if len(values) == 1:
        return values[0]
    if any(isinstance(value, Unknown) for value in values):
        return combined(values, text="".join(map(shown, values)))
    try:
        return joined(list(map(to_string, values)))
    except FunctionError as error:
        raise ExpressionError(str(error), template, 0) from None


def condition(text: str, contexts: Mapping[str, Value], status: JobStatus = SUCCESS) -> bool | Unknown:
    """Whether an `if:` lets its job or step run; `${{ }}` is optional, and no text means success().

    Without a call of a status function it is `success() && (…)`. Text beside `${{ }}`, be it a newline, makes the
    whole a non-empty string and hence true, as on GitHub. Raises ExpressionError as `interpolate` does.
    """
    expression, tree = _condition(text)
    if not expression.strip():
        return status.success
    if not (status.success or _calls_status(tree)):
        return False
    value = _Evaluation(expression, contexts, status).value(tree)
    holds = truth(value)
    return combined([value]) if holds is None else holds


def uses_status(text: str) -> bool:
    """Whether an `if:` calls success(), failure(), always() or cancelled(), and so does without the implicit success().

    Raises ExpressionError where the text does not parse.
    """
    return _calls_status(_condition(text)[1])


def references(template: str) -> list[str]:
    """What the `${{ }}` parts of a YAML scalar read, as dotted names, each once, in the order of the text.

    A name ends at a wildcard or at an index that is no constant. Raises ExpressionError as `interpolate` does.
    """
    names: list[str] = []
    pending = [parse(part.text) for part in split(template) if part.is_expression][::-1]
    while pending:
        node = pending.pop()
        path = _static_path(node)
        names.extend([".".join(path)] if path else [])
        pending.extend(() if path else reversed(node.parts))
    return list(dict.fromkeys(names))


def label_tests(text: str) -> list[str]:
    """The labels an `if:` asks the pull request for, as `contains(github.event.pull_request.labels.*.name, 'label')`.

    Each once, in the order of the text; a test under a `!` asks for the absence of its label and does not count. Raises
    ExpressionError where the text does not parse.
    """
    labels: list[str] = []
    pending = [(_condition(text)[1], True)]
    while pending:
        node, is_affirmed = pending.pop()
        labels.extend(_tested_label(node) if is_affirmed else [])
        below = is_affirmed != (node.kind == "!")
        pending.extend((part, below) for part in reversed(node.parts))
    return list(dict.fromkeys(labels))


class Part(NamedTuple):
    text: str
    is_expression: bool


def split(template: str) -> list[Part]:
    """The literal text and the expressions of a template; one empty text for an empty template."""
    parts = []
    end = 0
    while (start := template.find("${{", end)) >= 0:
        if start > end:
            parts.append(Part(template[end:start], False))
        end = _closing(template, start)
        parts.append(Part(template[start + 3 : end - 2].strip(), True))
    if end < len(template) or not parts:
        parts.append(Part(template[end:], False))
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


def _condition(text: str) -> tuple[str, Node]:
    """The one expression that GitHub makes of an `if:`, and its tree; null's for no text. Parts are parsed one by one,
    so that errors show the part's text."""
    parts = split(text)
    trees = [parse(part.text) for part in parts if part.is_expression]
    if len(parts) == 1:
        # GitHub takes `${{ 'text' }}` for the plain scalar `text`, and then reads that as an expression.
        literal = trees[0].value if trees and trees[0].kind == "literal" else None
        expression = literal if isinstance(literal, str) else parts[0].text
    else:
        numbers = iter(range(len(parts)))
        quoted = (part.text.replace("'", "''").replace("{", "{{").replace("}", "}}") for part in parts)
        texts = (
            f"{{{next(numbers)}}}" if part.is_expression else text for part, text in zip(parts, quoted, strict=True)
        )
        arguments = [f"'{''.join(texts)}'", *(part.text for part in parts if part.is_expression)]
        expression = f"format({', '.join(arguments)})"
    return expression, parse(expression) if expression.strip() else Node("literal")


def _calls_status(tree: Node) -> bool:
    return any(node.kind == "call" and node.value in STATUS_FUNCTIONS for node in tree.walk())


def _static_path(node: Node) -> list[str]:
    """`github.event['action']` as its names; empty for what is no such chain."""
    path: list[str] = []
    while node.kind != "context":
        if node.kind == "property":
            path.append(str(node.value))
        elif node.kind == "index" and node.parts[1].kind == "literal":
            path.append(to_string(node.parts[1].value))
        else:
            return []
        node = node.parts[0]
    return [str(node.value), *reversed(path)]


def _tested_label(node: Node) -> list[str]:
    match node:
        case Node(
            "call",
            "contains",
            (Node("property", str(name), (Node("wildcard", _, (of,)),)), Node("literal", str(label))),
        ):
            path = ".".join([*_static_path(of), name]).lower()
            return [label] if path == "github.event.pull_request.labels.name" else []
    return []


@dataclass(frozen=True)
class _Evaluation:
    text: str
    contexts: Mapping[str, Value]
    status: JobStatus

    def value(self, node: Node) -> Value:
        match node.kind:
            case "literal":
                return node.value
            case "context":
                return next(iter(lookup(self.contexts, str(node.value))), None)
            case "property" | "index":
                of, key = node.parts[0], node.value if node.kind == "property" else self.value(node.parts[1])
                # The runner's env is the one context that minds case, on Linux (CaseSensitiveDictionaryContextData).
                return index(self.value(of), self._compared(key), exact=of == Node("context", "env"))
            case "wildcard":
                return wildcard(self.value(node.parts[0]))
            case "call":
                return self._call(node)
            case "!":
                value = self.value(node.parts[0])
                holds = truth(value)
                return combined([value]) if holds is None else not holds
            case "&&" | "||":
                return self._chain(node)
        return self._comparison(node)

    def _compared(self, value: Value, other: Value = False) -> Value:
        """The value for a comparison with `other`."""
        secrets = self.contexts.get("secrets")
        if not (isinstance(secrets, OpenObject) and isinstance(value, str)):
            return value
        text = secrets.compared(value)
        # Whatever its value is, a secret that is set is not empty.
        return value if isinstance(text, Unknown) and (other is None or other == "") else text

    def _comparison(self, node: Node) -> Value:
        left, right = (settled(self.value(part)) for part in node.parts)
        left, right = self._compared(left, right), self._compared(right, left)
        if unknown := [side for side in (left, right) if isinstance(side, Unknown)]:
            return combined(unknown)
        if node.kind in ("==", "!="):
            return loose_equal(left, right) == (node.kind == "==")
        is_strict = less(left, right) if node.kind in ("<", "<=") else less(right, left)
        return is_strict or (node.kind in ("<=", ">=") and loose_equal(left, right))

    def _chain(self, node: Node) -> Value:
        """The operand that decides a chain of && or ||. A loop, since chains may be longer than Python's stack."""
        first, rest = node, list[Node]()
        while first.kind == node.kind:
            rest.append(first.parts[1])
            first = first.parts[0]
        decisive = node.kind == "||"  # the truth value that ends the chain
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

    def _call(self, call: Node) -> Value:
        name = str(call.value)
        if name in STATUS_FUNCTIONS:
            return name == "always" or bool(getattr(self.status, name))
        if name == "case":
            return self._case(call)
        function = FUNCTIONS[name.lower()]
        assert function.body is not None, f"{name} is evaluated above"
        arguments = [self.value(argument) for argument in call.parts]
        if function.tests:
            arguments = [self._compared(settled(argument)) for argument in arguments]
            arguments = [list(map(self._compared, item)) if isinstance(item, list) else item for item in arguments]
        if name == "contains" and isinstance(arguments[0], list) and not isinstance(arguments[1], Unknown):
            known = [member for member in arguments[0] if not isinstance(member, Unknown)]
            if function.body(known, arguments[1]):
                return True
        if any(True for argument in arguments for _ in unknowns(argument)):
            return combined(arguments)
        try:
            return function.body(*arguments)
        except FunctionError as error:
            raise ExpressionError(str(error), self.text, call.position) from None

    def _case(self, call: Node) -> Value:
        *pairs, default = call.parts
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
