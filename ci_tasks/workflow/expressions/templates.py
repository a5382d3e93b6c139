"""YAML scalars with `${{ }}` in them, and what can be said of an expression without evaluating it.

The contexts it reads, the PR labels it asks for, whether it calls a status function. That text around `${{ }}` makes
the whole a format() call, in an `if:` too, is learnt from actions/runner's C# source (`TemplateReader.ParseScalar`,
`ConvertToIfCondition`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .functions import STATUS_FUNCTIONS
from .nodes import Call, Context, ExpressionError, Index, Literal, Node, Property, Unary, Wildcard, children, walk
from .syntax import parse
from .values import to_string


def uses_status(text: str) -> bool:
    """Whether an `if:` calls success(), failure(), always() or cancelled(), and so does without the implicit success().

    Raises ExpressionError where the text does not parse.
    """
    expression = condition_expression(text)
    return bool(expression.strip()) and calls_status(parse(expression))


def references(template: str) -> list[str]:
    """What the `${{ }}` parts of a YAML scalar read, as dotted names, each once, in the order of the text.

    A name ends at a wildcard or at an index that is no constant. Raises ExpressionError as `interpolate` does.
    """
    trees = [parse(part.text) for part in split(template) if part.is_expression]
    return list(dict.fromkeys(map(".".join, _paths(trees))))


def label_tests(text: str) -> list[str]:
    """The labels an `if:` asks the pull request for, as `contains(github.event.pull_request.labels.*.name, 'label')`.

    Each once, in the order of the text; a test under a `!` asks for the absence of its label and does not count. Raises
    ExpressionError where the text does not parse.
    """
    expression = condition_expression(text)
    tree = parse(expression) if expression.strip() else Literal(None)
    return list(dict.fromkeys(label for node in _affirmed(tree) for label in _tested_label(node)))


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


def condition_expression(text: str) -> str:
    """The one expression that GitHub makes of an `if:`, checked part by part so that errors show the part's text."""
    parts = split(text)
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


def calls_status(tree: Node) -> bool:
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


def _affirmed(tree: Node) -> Iterator[Node]:
    """As `walk`, without what stands under an odd number of `!`."""
    pending = [(tree, True)]
    while pending:
        node, affirmed = pending.pop()
        if affirmed:
            yield node
        below = affirmed != isinstance(node, Unary)
        pending.extend((child, below) for child in reversed(children(node)))


def _tested_label(node: Node) -> list[str]:
    match node:
        case Call("contains", (Property(Wildcard(labels), name), Literal(str(label)))) if name.lower() == "name":
            path = ".".join(_static_path(labels)).lower()
            return [label] if path == "github.event.pull_request.labels" else []
    return []
