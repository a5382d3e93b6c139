"""The grammar of GitHub's expressions: the tree, the tokens, and the parser from a text to its tree.

Operators and their precedence are on the documentation page "Evaluate expressions in workflows and actions"
(Operators). Which token may follow which, what ends a token, and that unknown names are errors before anything is
evaluated, is learnt from actions/runner's C# source (`LexicalAnalyzer`, `ExpressionParser`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from functools import lru_cache
from math import inf, isnan, nan
from typing import NamedTuple, NoReturn

from ci_tasks.agent.quick_dataclass import dataclass

from .functions import FUNCTIONS
from .values import Value, as_number, parse_number


class ExpressionError(Exception):
    """An expression that GitHub would refuse, or that cannot be evaluated here.

    `message` says why, `text` is the expression, `position` the offset in it, from 0.
    """

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(message, text, position)
        self.message, self.text, self.position = message, text, position

    def __str__(self) -> str:
        start = self.text.rfind("\n", 0, self.position) + 1
        line = self.text[start:].partition("\n")[0]
        pad = re.sub(r"[^\t]", " ", line[: self.position - start])
        return f"{self.message}\n  {line}\n  {pad}^" if line else self.message


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


CONTEXTS = (
    *("github", "env", "matrix", "inputs", "secrets", "needs"),
    *("steps", "runner", "vars", "job", "jobs", "strategy"),
)
MAX_DEPTH = 50

_PRECEDENCE = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4}
_CONSTANTS: dict[str, Value] = {"null": None, "true": True, "false": False, "NaN": nan, "Infinity": inf}
_KEYWORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string> '(?:[^']|'')*'(?!') )
    | (?P<symbol> [!<>=]= | && | \|\| | [][().,*!<>] )
    | (?P<number> [-+0-9][^][(),!<>=&|\s]* )
    | (?P<word>   [^][(),.!<>=&|\s'][^][(),.!<>=&|\s]* )
    | (?P<end>    \Z )
    | (?P<bad>    . )
    )""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[^][(),!<>=&|\s]+")
_HINTS = {"'": "the string is not closed", "=": "'=' is not an operator; use '=='", "&": "use '&&'", "|": "use '||'"}


@lru_cache(maxsize=1024)  # a job's expressions are the same in each of its rows
def parse(text: str) -> Node:
    """The tree of an expression without its `${{ }}`.

    Raises ExpressionError where the text is empty or no expression, names an unknown context or function, has a call
    with a wrong number of arguments, or is nested more than 50 deep (`ExpressionConstants.MaxDepth` in the runner).
    """
    return _ExpressionParser(text).whole()


class _Token(NamedTuple):
    kind: str
    text: str
    position: int
    value: Value = None


class _ExpressionParser:
    """Recursive descent, one token ahead. A method consumes what it returns."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.nesting = 0
        self.token = self._read(0)

    def whole(self) -> Node:
        if self.token.kind == "end":
            self._refuse("an expression was expected")
        node = self._binary(0)
        if self.token.kind != "end":
            self._refuse_token()
        self._check_depth(node)
        return node

    def _binary(self, lowest: int) -> Node:
        left = self._unary()
        while (precedence := _PRECEDENCE.get(self.token.text if self.token.kind == "symbol" else "", -1)) >= lowest:
            op = self._advance().text
            left = Node(op, None, (left, self._binary(precedence + 1)))
        return left

    def _unary(self) -> Node:
        negations = 0
        while self._accept("!"):
            negations += 1
        node = self._operand()
        for _ in range(negations):
            node = Node("!", None, (node,))
        return node

    def _operand(self) -> Node:
        if self.token[:2] == ("symbol", "."):
            self.token = self._number(self.token.position)
        token = self._advance()
        if token.kind in ("number", "string"):
            return Node("literal", token.value)
        if token.kind == "word" and token.text in _CONSTANTS:
            return Node("literal", _CONSTANTS[token.text])
        if token.kind == "symbol" and token.text == "(":
            node = self._nested()
            self._expect(")")
            return self._dereferenced(node)
        if token.kind == "word":
            return self._dereferenced(self._call(token) if self._accept("(") else self._context(token))
        return self._refuse_token(token)

    def _dereferenced(self, node: Node) -> Node:
        """Only what is not a literal can be followed by `.name`, `.*`, `[key]` or `[*]`."""
        while True:
            if self._accept("."):
                if self._accept("*"):
                    node = Node("wildcard", None, (node,))
                elif self.token.kind == "word":
                    node = Node("property", self._advance().text, (node,))
                else:
                    self._refuse_token()
            elif self._accept("["):
                is_all = self._accept("*")
                node = Node("wildcard", None, (node,)) if is_all else Node("index", None, (node, self._nested()))
                self._expect("]")
            else:
                return node

    def _nested(self) -> Node:
        """An expression inside brackets, counted on the way down: hostile text must not exhaust Python's stack."""
        self.nesting += 1
        if self.nesting > MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} deep")
        node = self._binary(0)
        self.nesting -= 1
        return node

    def _context(self, token: _Token) -> Node:
        if token.text.lower() not in CONTEXTS:
            self._refuse(_unknown("context", token.text, CONTEXTS), token.position)
        return Node("context", token.text.lower())

    def _call(self, token: _Token) -> Node:
        function = FUNCTIONS.get(token.text.lower())
        if function is None:
            self._refuse(_unknown("function", token.text, [each.name for each in FUNCTIONS.values()]), token.position)
        arguments: list[Node] = []
        while not self._accept(")"):
            if arguments:
                self._expect(",")
            arguments.append(self._nested())
        if problem := function.refusal(len(arguments)):
            self._refuse(problem, token.position)
        return Node("call", function.name, tuple(arguments), token.position)

    def _check_depth(self, root: Node) -> None:
        """As GitHub counts: an unbroken chain of && or of || is one level, however long."""
        pending = [(root, 1)]
        while pending:
            node, depth = pending.pop()
            if depth > MAX_DEPTH:
                self._refuse(f"nested more than {MAX_DEPTH} deep", 0)
            chained = node.kind if node.kind in ("&&", "||") else None
            pending.extend((part, depth if part.kind == chained else depth + 1) for part in node.parts)

    def _advance(self) -> _Token:
        token = self.token
        if token.kind != "end":
            self.token = self._read(token.position + len(token.text))
        return token

    def _accept(self, symbol: str) -> bool:
        accepted = self.token.kind == "symbol" and self.token.text == symbol
        if accepted:
            self._advance()
        return accepted

    def _expect(self, symbol: str) -> None:
        if not self._accept(symbol):
            self._refuse_token()

    def _read(self, start: int) -> _Token:
        match = _TOKEN.match(self.text, start)
        assert match is not None, "the last alternative takes any character"
        kind = str(match.lastgroup)
        position = match.start(kind)
        token = _Token(kind, match[kind], position)
        if kind == "string":
            return token._replace(value=token.text[1:-1].replace("''", "'"))
        if kind == "number":
            return self._number(position)
        if kind == "word" and not _KEYWORD.fullmatch(token.text):
            quote = token.text.find('"')
            if quote >= 0:
                self._refuse("strings are written in single quotes, not double", position + quote)
            self._refuse(f"unexpected {token.text!r}", position)
        if kind == "bad":
            self._refuse(_HINTS.get(token.text, f"unexpected {token.text!r}"), position)
        return token

    def _number(self, position: int) -> _Token:
        match = _NUMBER.match(self.text, position)
        assert match is not None, "the caller has seen its first character"
        value = parse_number(match[0])
        if isnan(value):
            self._refuse(f"{match[0]!r} is not a number", position)
        return _Token("number", match[0], position, as_number(value))

    def _refuse_token(self, token: _Token | None = None) -> NoReturn:
        token = token or self.token
        self._refuse("unexpected end" if token.kind == "end" else f"unexpected {token.text!r}", token.position)

    def _refuse(self, message: str, position: int | None = None) -> NoReturn:
        raise ExpressionError(message, self.text, self.token.position if position is None else position)


def _unknown(what: str, name: str, valid: Iterable[str]) -> str:
    import difflib  # here, since only an error needs it

    by_lower = {valid_name.lower(): valid_name for valid_name in valid}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    nearest = f"; did you mean {by_lower[near[0]]!r}?" if near else ""
    return f"unknown {what} {name!r}{nearest} (valid: {', '.join(sorted(by_lower.values(), key=str.lower))})"
