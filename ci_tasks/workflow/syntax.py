"""The grammar of GitHub's expressions: a text's tree.

Operators and their precedence are on the documentation page "Evaluate expressions in workflows and actions"
(Operators). Which token may follow which, what ends a token, and that unknown names are errors before anything is
evaluated, is learnt from actions/runner's C# source (`LexicalAnalyzer`, `ExpressionParser`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache
from math import inf, isnan, nan
from typing import NamedTuple, NoReturn

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import did_you_mean
from ci_tasks.workflow.values import Value, as_number, parse_number


class ExpressionError(Exception):
    """An expression that GitHub would refuse, or that cannot be evaluated here.

    `message` says why, `text` is the expression, `position` the offset in it, from 0.
    """

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(message)
        self.message, self.text, self.position = message, text, position


@dataclass(frozen=True)
class Node:
    """`kind` is literal, context, property, index, wildcard, call, or an operator (`!`, `||`, `==`, …), whose chains of
    && or || lean to the left. `value` is a literal's value, or the name of a context, a property or a function, in
    GitHub's spelling; `parts` are the nodes right below, in the order of the text; `position` is a call's offset."""

    kind: str
    value: Value = None
    parts: tuple[Node, ...] = ()
    position: int = field(default=0, compare=False)

    def walk(self) -> Iterator[Node]:
        """Every node of the tree, depth first, each before those below it and in the order of the text."""
        pending = [self]
        while pending:
            current = pending.pop()
            yield current
            pending.extend(reversed(current.parts))


STATUS_FUNCTIONS = ("success", "failure", "always", "cancelled")
# The fewest and the most arguments. 255 is GitHub's own upper bound. success() and failure() take job names in a job's
# `if` on GitHub's side, which its documentation does not offer; here they take none.
ARITIES = {
    "case": (3, 255),
    "contains": (2, 2),
    "endsWith": (2, 2),
    "format": (1, 255),
    "fromJSON": (1, 1),
    "hashFiles": (1, 255),
    "join": (1, 2),
    "startsWith": (2, 2),
    "toJSON": (1, 1),
    **dict.fromkeys(STATUS_FUNCTIONS, (0, 0)),
}
CONTEXTS = (
    *("github", "env", "matrix", "inputs", "secrets", "needs"),
    *("steps", "runner", "vars", "job", "jobs", "strategy"),
)
MAX_DEPTH = 50  # ExpressionConstants.MaxDepth in the runner

_FUNCTIONS = {name.lower(): name for name in ARITIES}
_PRECEDENCE = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4}
_CONSTANTS: dict[str, Value] = {"null": None, "true": True, "false": False, "NaN": nan, "Infinity": inf}
_KEYWORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string> '(?:[^']|'')*'(?!') )
    | (?P<number> (?:[-+0-9]|(?<![\w\])*])\.[0-9])[^][(),!<>=&|\s]* )
    | (?P<symbol> [!<>=]= | && | \|\| | [][().,*!<>] )
    | (?P<word>   [^][(),.!<>=&|\s'][^][(),.!<>=&|\s]* )
    | (?P<end>    \Z )
    | (?P<bad>    . )
    )""",
    re.VERBOSE | re.DOTALL,
)
_HINTS = {"'": "the string is not closed", "=": "'=' is not an operator; use '=='", "&": "use '&&'", "|": "use '||'"}


@lru_cache(maxsize=1024)  # a job's expressions are the same in each of its rows
def parse(text: str) -> Node:
    """The tree of an expression without its `${{ }}`.

    Raises ExpressionError where the text is empty or no expression, names an unknown context or function, has a call
    with a wrong number of arguments, or is nested more than 50 deep.
    """
    too_deep = ExpressionError(f"nested more than {MAX_DEPTH} deep", text, 0)
    try:
        root = _Parser(text).whole()
    except RecursionError:
        raise too_deep from None
    # As GitHub counts: an unbroken chain of && or of || is one level, however long.
    pending = [(root, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise too_deep
        chained = node.kind if node.kind in ("&&", "||") else None
        pending.extend((part, depth if part.kind == chained else depth + 1) for part in node.parts)
    return root


class _Token(NamedTuple):
    kind: str
    text: str
    position: int
    value: Value = None


class _Parser:
    """Recursive descent. A method consumes what it returns."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.token = self._read(0)

    def whole(self) -> Node:
        if self.token.kind == "end":
            self._refuse("an expression was expected", 0)
        node = self._binary(0)
        if self.token.kind != "end":
            self._refuse_token(self.token)
        return node

    def _binary(self, lowest: int) -> Node:
        left = self._unary()
        while (precedence := _PRECEDENCE.get(self.token.text if self.token.kind == "symbol" else "", -1)) >= lowest:
            operator = self._advance().text
            left = Node(operator, None, (left, self._binary(precedence + 1)))
        return left

    def _unary(self) -> Node:
        return Node("!", None, (self._unary(),)) if self._accept("!") else self._operand()

    def _operand(self) -> Node:
        token = self._advance()
        if token.kind in ("number", "string"):
            return Node("literal", token.value)
        if token.kind == "word" and token.text in _CONSTANTS:
            return Node("literal", _CONSTANTS[token.text])
        if token.kind == "word":
            if self._accept("("):
                return self._dereferenced(self._call(token))
            if token.text.lower() not in CONTEXTS:
                self._refuse_name("context", token, CONTEXTS)
            return self._dereferenced(Node("context", token.text.lower()))
        if token[:2] != ("symbol", "("):
            self._refuse_token(token)
        node = self._binary(0)
        self._expect(")")
        return self._dereferenced(node)

    def _dereferenced(self, node: Node) -> Node:
        """Only what is not a literal can be followed by `.name`, `.*`, `[key]` or `[*]`."""
        while True:
            if self._accept("."):
                token = self._advance()
                if token.text != "*" and token.kind != "word":
                    self._refuse_token(token)
                node = (
                    Node("property", token.text, (node,)) if token.kind == "word" else Node("wildcard", None, (node,))
                )
            elif self._accept("["):
                is_all = self._accept("*")
                node = Node("wildcard", None, (node,)) if is_all else Node("index", None, (node, self._binary(0)))
                self._expect("]")
            else:
                return node

    def _call(self, token: _Token) -> Node:
        if token.text.lower() not in _FUNCTIONS:
            self._refuse_name("function", token, tuple(ARITIES))
        name = _FUNCTIONS[token.text.lower()]
        arguments: list[Node] = []
        while not self._accept(")"):
            if arguments:
                self._expect(",")
            arguments.append(self._binary(0))
        (fewest, most), count = ARITIES[name], len(arguments)
        if not fewest <= count <= most:
            arity = " to ".join(map(str, sorted({fewest, most})))
            self._refuse(
                f"{name} takes {arity} {'argument' if most == 1 else 'arguments'}, not {count}", token.position
            )
        if name == "case" and count % 2 == 0:
            why = f"case takes pairs of a condition and a value, then a default: {count} is even"
            self._refuse(why, token.position)
        return Node("call", name, tuple(arguments), token.position)

    def _advance(self) -> _Token:
        token = self.token
        if token.kind != "end":
            self.token = self._read(token.position + len(token.text))
        return token

    def _accept(self, symbol: str) -> bool:
        accepted = self.token[:2] == ("symbol", symbol)
        if accepted:
            self._advance()
        return accepted

    def _expect(self, symbol: str) -> None:
        if not self._accept(symbol):
            self._refuse_token(self.token)

    def _read(self, start: int) -> _Token:
        match = _TOKEN.match(self.text, start)
        assert match is not None, "the last alternative takes any character"
        kind = str(match.lastgroup)
        text, position = match[kind], match.start(kind)
        if kind == "string":
            return _Token(kind, text, position, text[1:-1].replace("''", "'"))
        if kind == "number":
            if isnan(number := parse_number(text)):
                self._refuse(f"{text!r} is not a number", position)
            return _Token(kind, text, position, as_number(number))
        if kind == "word" and '"' in text:
            self._refuse("strings are written in single quotes, not double", position + text.find('"'))
        if kind == "bad" or (kind == "word" and not _KEYWORD.fullmatch(text)):
            self._refuse(_HINTS.get(text, f"unexpected {text!r}"), position)
        return _Token(kind, text, position)

    def _refuse_name(self, what: str, token: _Token, valid: tuple[str, ...]) -> NoReturn:
        names = ", ".join(sorted(valid, key=str.lower))
        self._refuse(f"unknown {what} {token.text!r}{did_you_mean(token.text, valid)} (valid: {names})", token.position)

    def _refuse_token(self, token: _Token) -> NoReturn:
        self._refuse("unexpected end" if token.kind == "end" else f"unexpected {token.text!r}", token.position)

    def _refuse(self, message: str, position: int) -> NoReturn:
        raise ExpressionError(message, self.text, position)
