"""What `${{ … }}` and `if:` come to, given GitHub's contexts: values, conditions, and the names that they read.

What depends on a value that only GitHub knows is Unknown, and names it. What does not, such as the other side of `false
&& …`, has its value. A secret is a mark for its value, which a comparison needs: it asks the `secrets` context. Only
its result leaves.

The functions are those of the documentation page "Evaluate expressions in workflows and actions"; their coercions and
edge cases are from actions/runner's C# source (`Sdk/Functions/*`). That text around `${{ }}` makes the whole a format()
call, and how `if:` gets its implicit success(), are from there too (`TemplateReader.ParseScalar`,
`ConvertToIfCondition`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import truncated
from ci_tasks.workflow import values
from ci_tasks.workflow.syntax import STATUS_FUNCTIONS, ExpressionError, Node, parse
from ci_tasks.workflow.values import OpenObject, Unknown, Value, combined, is_primitive, to_string, truth, unknowns

SUCCESS, FAILURE = "success", "failure"  # how the job stands
MAX_TEXT = 1_000_000  # characters
_FORMAT_ITEM = re.compile(r"\{\{|\}\}|\{([0-9]+)\}|[{}]")


def evaluate(text: str, contexts: Mapping[str, Value], status: str = SUCCESS) -> Value:
    """The value of an expression without its `${{ }}`; a context that is not in the mapping is null.

    Raises ExpressionError for what `parse` or a function refuses.
    """
    return _Evaluation(text, contexts, status).value(parse(text))


def interpolate(template: str, contexts: Mapping[str, Value], status: str = SUCCESS) -> Value:
    """The value of a YAML scalar: typed if it is one `${{ }}` and nothing else, otherwise a string, or Unknown.

    Raises ExpressionError for an unclosed `${{`, a text of more than 1 MB and whatever `evaluate` raises it for.
    """
    parts = [evaluate(part.text, contexts, status) if part.is_expression else part.text for part in split(template)]
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, Unknown) for part in parts):
        return combined(parts, text="".join(map(values.shown, parts)))
    try:
        return _joined(list(map(to_string, parts)))
    except _FunctionError as error:
        raise ExpressionError(str(error), template, 0) from None


def condition(text: str, contexts: Mapping[str, Value], status: str = SUCCESS) -> bool | Unknown:
    """Whether an `if:` lets its job or step run; `${{ }}` is optional, and no text means success().

    Without a call of a status function it is `success() && (…)`. Text beside `${{ }}`, be it a newline, makes the
    whole a non-empty string and hence true, as on GitHub. Raises ExpressionError as `interpolate` does.
    """
    tree = _condition(text)
    if tree is None or not (status == SUCCESS or _calls_status(tree)):
        return status == SUCCESS
    value = _Evaluation(text, contexts, status).value(tree)
    holds = truth(value)
    return combined([value]) if holds is None else holds


def uses_status(text: str) -> bool:
    """Whether an `if:` calls success(), failure(), always() or cancelled(), and so does without the implicit success().

    Raises ExpressionError where the text does not parse.
    """
    tree = _condition(text)
    return tree is not None and _calls_status(tree)


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
    pending = [(_condition(text) or Node("literal"), True)]
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
        closing = _TO_CLOSING.match(template, start)
        if closing is None:
            raise ExpressionError("'${{' is not closed by '}}'", template, start)
        end = closing.end()
        parts.append(Part(template[start + 3 : end - 2].strip(), True))
    if end < len(template) or not parts:
        parts.append(Part(template[end:], False))
    return parts


# To the first }} outside a string. A doubled quote inside a string closes and opens it again.
_TO_CLOSING = re.compile(r"\$\{\{(?:[^'}]|'[^']*'|\}(?!\}))*\}\}")


def _condition(text: str) -> Node | None:
    """The tree of the one expression that GitHub makes of an `if:`; None for no text."""
    parts = split(text)
    if len(parts) > 1:
        trees = [parse(part.text) if part.is_expression else Node("literal", part.text) for part in parts]
        template = "".join(f"{{{number}}}" for number in range(len(trees)))
        return Node("call", "format", (Node("literal", template), *trees))
    if not parts[0].text.strip() and not parts[0].is_expression:
        return None
    tree = parse(parts[0].text)
    # GitHub takes `${{ 'text' }}` for the plain scalar `text`, and then reads that as an expression.
    if parts[0].is_expression and tree.kind == "literal" and isinstance(tree.value, str):
        return parse(tree.value) if tree.value.strip() else None
    return tree


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
            "call", "contains", (Node("property", str(name), (Node("wildcard", _, (of,)),)), Node("literal", label))
        ):
            path = ".".join([*_static_path(of), str(name)]).lower()
            return [str(label)] if path == "github.event.pull_request.labels.name" else []
    return []


@dataclass(frozen=True)
class _Evaluation:
    text: str
    contexts: Mapping[str, Value]
    status: str

    def value(self, node: Node) -> Value:
        match node.kind:
            case "literal":
                return node.value
            case "context":
                return next(iter(values.lookup(self.contexts, str(node.value))), None)
            case "property" | "index":
                of, key = node.parts[0], node.value if node.kind == "property" else self.value(node.parts[1])
                # The runner's env is the one context that minds case, on Linux (CaseSensitiveDictionaryContextData).
                return values.index(self.value(of), self._compared(key), exact=of == Node("context", "env"))
            case "wildcard":
                return values.wildcard(self.value(node.parts[0]))
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
        left, right = (values.settled(self.value(part)) for part in node.parts)
        left, right = self._compared(left, right), self._compared(right, left)
        if unknown := [side for side in (left, right) if isinstance(side, Unknown)]:
            return combined(unknown)
        if node.kind in ("==", "!="):
            return values.loose_equal(left, right) == (node.kind == "==")
        is_strict = values.less(left, right) if node.kind in ("<", "<=") else values.less(right, left)
        return is_strict or (node.kind in ("<=", ">=") and values.loose_equal(left, right))

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
        return combined([*undecided, value], holds=decisive if truth(value) is decisive else None)

    def _call(self, call: Node) -> Value:
        name = str(call.value)
        if name in STATUS_FUNCTIONS:
            return name in ("always", self.status)
        try:
            if name == "case":
                return self._case(*call.parts)
            arguments = [self.value(argument) for argument in call.parts]
            if name in _TESTS:
                arguments = [self._compared(values.settled(argument)) for argument in arguments]
                arguments = [list(map(self._compared, item)) if isinstance(item, list) else item for item in arguments]
            if name == "contains" and isinstance(arguments[0], list) and not isinstance(arguments[1], Unknown):
                known: list[Value] = [member for member in arguments[0] if not isinstance(member, Unknown)]
                if _contains(known, arguments[1]):
                    return True
            is_unknown = any(True for argument in arguments for _ in unknowns(argument))
            return combined(arguments) if is_unknown else _FUNCTIONS[name](*arguments)
        except _FunctionError as error:
            raise ExpressionError(str(error), self.text, call.position) from None

    def _case(self, *parts: Node) -> Value:
        for predicate, result in zip(parts[:-1:2], parts[1:-1:2], strict=True):
            holds = values.settled(self.value(predicate))
            if isinstance(holds, Unknown):
                return combined([holds])
            if not isinstance(holds, bool):
                raise _FunctionError(f"case: a condition must be a boolean, not {values.kind(holds).lower()}")
            if holds:
                return self.value(result)
        return self.value(parts[-1])


# -- functions ---------------------------------------------------------------------------------------------------------


class _FunctionError(Exception):
    """Why a function refuses its arguments."""


def _joined(pieces: Sequence[str], separator: str = "") -> str:
    """Refuses a text of more than 1 MB before it is made: calls in calls soon make more than any memory holds."""
    if sum(map(len, pieces)) + len(separator) * len(pieces) > MAX_TEXT:
        raise _FunctionError(f"the text has more than {MAX_TEXT:,} characters")
    return separator.join(pieces)


def _contains(search: Value, item: Value) -> bool:
    """Whether an array has a loosely equal item, or a primitive's text holds the other's, case aside."""
    if isinstance(search, list):
        return any(values.loose_equal(item, member) for member in search)
    return _compare_text(str.__contains__)(search, item)


def _compare_text(test: Callable[[str, str], bool]) -> Callable[[Value, Value], bool]:
    """Whether two texts pass the test, case aside; never where one is an array or object."""
    return lambda left, right: (
        is_primitive(left) and is_primitive(right) and test(values.fold(to_string(left)), values.fold(to_string(right)))
    )


def _format(template: Value, *arguments: Value) -> str:
    """The arguments at {0}, {1}, …; {{ and }} stand for braces."""
    text, end, pieces = to_string(template), 0, list[str]()
    for item in _FORMAT_ITEM.finditer(text):
        if item[1] is None and item[0] not in ("{{", "}}"):
            raise _FunctionError(f"format: {text!r} has a brace that is neither {{0}} nor doubled as {{{{ or }}}}")
        # Compared by length first: Python refuses to read integers of thousands of digits.
        if item[1] and (len(item[1]) > 3 or int(item[1]) >= len(arguments)):
            raise _FunctionError(f"format: {text!r} asks for {item[0]}, but there are {len(arguments)} arguments")
        pieces += [text[end : item.start()], to_string(arguments[int(item[1])]) if item[1] else item[0][0]]
        end = item.end()
    return _joined([*pieces, text[end:]])


def _join(items: Value, separator: Value = ",") -> str:
    """The texts of an array's items with a separator between; a primitive's own text; '' of an object."""
    if isinstance(items, list):
        return _joined(list(map(to_string, items)), to_string(separator) if is_primitive(separator) else ",")
    return to_string(items) if is_primitive(items) else ""


def _to_json(value: Value) -> str:
    """The value as JSON over several lines, indented by two spaces; whole numbers without a fraction."""

    def plain(item: Value) -> Value:
        if isinstance(item, dict):
            return {key: plain(inner) for key, inner in item.items()}
        if isinstance(item, list):
            return [plain(inner) for inner in item]
        return values.as_number(item) if isinstance(item, float) else item

    try:
        return json.dumps(plain(value), indent=2, ensure_ascii=False)
    except RecursionError:
        raise _FunctionError("toJSON: the value is nested too deeply") from None


def _from_json(text: Value) -> Value:
    """The value of a JSON text; a primitive that is no string is read as its text, so fromJSON(true) is true."""
    source = to_string(text)

    def number(digits: str) -> Value:
        return values.as_number(float(digits))

    try:
        # Not strict: GitHub's parser, Newtonsoft.Json, takes line ends and tabs inside strings.
        value: Value = json.loads(source, parse_int=number, parse_float=number, strict=False)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise _FunctionError(f"fromJSON: not JSON ({why}): {truncated(source, 200)!r}") from None
    return value


def _hash_files(*_: Value) -> Value:
    raise _FunctionError("hashFiles needs the files of the checkout and is not supported")


_TESTS: dict[str, Callable[..., Value]] = {  # give a boolean and no text of their arguments
    "contains": _contains,
    "endsWith": _compare_text(str.endswith),
    "startsWith": _compare_text(str.startswith),
}
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **_TESTS,
    "format": _format,
    "fromJSON": _from_json,
    "hashFiles": _hash_files,
    "join": _join,
    "toJSON": _to_json,
}
