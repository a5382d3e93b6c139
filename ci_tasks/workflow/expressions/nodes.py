"""The syntax tree of an expression, and the error that says why there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from typing import TypeAlias

from ci_tasks.agent.quick_dataclass import dataclass

from .values import Value


class ExpressionError(Exception):
    """An expression that GitHub would refuse, or that cannot be evaluated here.

    `message` says why, `text` is the expression, `position` the offset in it, from 0.
    """

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(message, text, position)
        self.message = message
        self.text = text
        self.position = position

    def __str__(self) -> str:
        start = self.text.rfind("\n", 0, self.position) + 1
        line = self.text[start:].partition("\n")[0]
        pad = re.sub(r"[^\t]", " ", line[: self.position - start])
        return f"{self.message}\n  {line}\n  {pad}^" if line else self.message


@dataclass(frozen=True)
class Literal:
    """null, a boolean, a number or a string."""

    value: Value


@dataclass(frozen=True)
class Context:
    """A top-level name such as `github`, in GitHub's spelling."""

    name: str


@dataclass(frozen=True)
class Property:
    of: Node
    name: str


@dataclass(frozen=True)
class Index:
    of: Node
    key: Node


@dataclass(frozen=True)
class Wildcard:
    of: Node


@dataclass(frozen=True)
class Call:
    """A function call; `name` is in GitHub's spelling, `position` the offset of the name in the text."""

    name: str
    arguments: tuple[Node, ...]
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Unary:
    op: str
    operand: Node


@dataclass(frozen=True)
class Binary:
    """`left op right`; a chain of && or || leans to the left."""

    op: str
    left: Node
    right: Node


Node: TypeAlias = "Literal | Context | Property | Index | Wildcard | Call | Unary | Binary"


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below one, in the order of the text."""
    match node:
        case Property(of=of) | Wildcard(of=of):
            return (of,)
        case Index(of=of, key=key):
            return (of, key)
        case Call(arguments=arguments):
            return arguments
        case Unary(operand=operand):
            return (operand,)
        case Binary(left=left, right=right):
            return (left, right)
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """Every node of the tree, depth first, each before those below it and in the order of the text."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(reversed(children(current)))
