"""GitHub's expressions: what `${{ … }}` and `if:` come to, given GitHub's contexts, and the names that they read.

What depends on a value that only GitHub knows is Unknown, and names it. What does not, such as the other side of `false
&& …`, has its value. A secret is a mark for its value, which a comparison needs: it asks the `secrets` context. Only
its result leaves.

Operators and functions follow the documentation page "Evaluate expressions in workflows and actions". Coercions, edge
cases, which token may follow which, and that unknown names are errors before anything is evaluated, are from
actions/runner's C# source (`Sdk/Functions/*`, `LexicalAnalyzer`, `ExpressionParser`). That text around `${{ }}` makes
the whole a format() call, and how `if:` gets its implicit success(), are from there too (`TemplateReader.ParseScalar`,
`ConvertToIfCondition`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import takewhile
from math import inf, isnan, nan
from typing import NamedTuple, NoReturn

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import did_you_mean, truncated
from ci_tasks.workflow import values
from ci_tasks.workflow.values import OpenObject, Unknown, Value, combined, is_primitive, to_string, truth, unknowns

SUCCESS, FAILURE = "success", "failure"  # how the job stands
MAX_TEXT = 1_000_000  # characters
_FORMAT_ITEM = re.compile(r"\{\{|\}\}|\{([0-9]+)\}|[{}]")


def evaluate(text: str, contexts: Mapping[str, Value], status: str = SUCCESS) -> Value:
    """The value of an expression without its `${{ }}`; a context that is not in the mapping is null.

    Raises ExpressionError for what `parse` or a function refuses.
    """
    return Evaluation(text, contexts, status).value(parse(text))


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
    except ValueError as error:
        raise ExpressionError(str(error), template, 0) from None


def condition(text: str, contexts: Mapping[str, Value], status: str = SUCCESS) -> bool | Unknown:
    """Whether an `if:` lets its job or step run; `${{ }}` is optional, and no text means success().

    Without a call of a status function it is `success() && (…)`. Text beside `${{ }}`, be it a newline, makes the
    whole a non-empty string and hence true, as on GitHub. Raises ExpressionError as `interpolate` does.
    """
    tree = condition_tree(text)
    calls = (node.value for node in tree.walk() if node.kind == "call") if tree else iter(())
    if tree is None or not (status == SUCCESS or any(name in STATUS_FUNCTIONS for name in calls)):
        return status == SUCCESS
    value = Evaluation(text, contexts, status).value(tree)
    holds = truth(value)
    return combined([value]) if holds is None else holds


def references(template: str) -> list[str]:
    """What the `${{ }}` parts of a YAML scalar read, as dotted names, each once, in the order of the text.

    A name ends at a wildcard or at an index that is no constant. Raises ExpressionError as `interpolate` does.
    """
    names: list[str] = []
    pending = [parse(part.text) for part in split(template) if part.is_expression][::-1]
    while pending:
        node = pending.pop()
        path = _path(node)
        names += [".".join(takewhile(lambda name: name != "*", path))] if path else []
        pending += () if path else reversed(node.parts)
    return list(dict.fromkeys(names))


def label_tests(text: str) -> list[str]:
    """The labels an `if:` asks the pull request for, as `contains(github.event.pull_request.labels.*.name, 'label')`.

    Each once, in the order of the text; a test under a `!` asks for the absence of its label and does not count. Raises
    ExpressionError if the text does not parse.
    """
    labels: list[str] = []
    pending = [(condition_tree(text) or Node("literal"), True)]
    while pending:
        node, is_affirmed = pending.pop()
        if is_affirmed and (node.kind, node.value) == ("call", "contains") and node.parts[1].kind == "literal":
            is_label = ".".join(_path(node.parts[0])).lower() == "github.event.pull_request.labels.*.name"
            labels += [str(node.parts[1].value)] if is_label else []
        pending += [(part, is_affirmed != (node.kind == "!")) for part in reversed(node.parts)]
    return list(dict.fromkeys(labels))


class Part(NamedTuple):
    text: str
    is_expression: bool


# To the first }} outside a string. A doubled quote inside a string closes and opens it again.
_EXPRESSION = re.compile(r"\$\{\{(?:[^'}]|'[^']*'|\}(?!\}))*\}\}")


def split(template: str) -> list[Part]:
    """The literal text and the expressions of a template; one empty text for an empty template."""
    parts, end = list[Part](), 0
    while (start := template.find("${{", end)) >= 0:
        found = _EXPRESSION.match(template, start)
        if found is None:  # at once: a search from each later `${{`, too, takes minutes in a text of 100 KB
            raise ExpressionError("'${{' is not closed by '}}'", template, start)
        parts += [Part(template[end:start], False), Part(found[0][3:-2].strip(), True)]
        end = found.end()
    parts.append(Part(template[end:], False))
    return [part for part in parts if part.text or part.is_expression] or [Part("", False)]


def condition_tree(text: str) -> Node | None:
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


def _path(node: Node) -> list[str]:
    """`github.event['action'].*` as its names, a wildcard as `*`; empty for what is no such chain."""
    path: list[str] = []
    while node.kind != "context":
        if node.kind in ("property", "wildcard"):
            path.append("*" if node.kind == "wildcard" else str(node.value))
        elif node.kind == "index" and node.parts[1].kind == "literal":
            path.append(to_string(node.parts[1].value))
        else:
            return []
        node = node.parts[0]
    return [str(node.value), *reversed(path)]


@dataclass(frozen=True)
class Evaluation:
    """Evaluates the nodes of the expression `text`."""

    text: str
    contexts: Mapping[str, Value]
    status: str = SUCCESS

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
            return combined(arguments) if is_unknown else _FUNCTIONS[name][2](*arguments)
        except ValueError as error:
            raise ExpressionError(str(error), self.text, call.position) from None

    def _case(self, *parts: Node) -> Value:
        for predicate, result in zip(parts[:-1:2], parts[1:-1:2], strict=True):
            holds = values.settled(self.value(predicate))
            if isinstance(holds, Unknown):
                return combined([holds])
            if not isinstance(holds, bool):
                raise ValueError(f"case: a condition must be a boolean, not {values.kind(holds).lower()}")
            if holds:
                return self.value(result)
        return self.value(parts[-1])


# -- functions ---------------------------------------------------------------------------------------------------------


def _joined(pieces: Sequence[str], separator: str = "") -> str:
    """Refuses a text of more than 1 MB before it is made: calls in calls soon make more than any memory holds."""
    if sum(map(len, pieces)) + len(separator) * len(pieces) > MAX_TEXT:
        raise ValueError(f"the text has more than {MAX_TEXT:,} characters")
    return separator.join(pieces)


def _contains(search: Value, item: Value) -> bool:
    """Whether an array has a loosely equal item, or a primitive's text holds the other's, case aside."""
    if isinstance(search, list):
        return any(values.loose_equal(item, member) for member in search)
    return _compare_text(str.__contains__)(search, item)


def _compare_text(test: Callable[[str, str], bool]) -> Callable[[Value, Value], bool]:
    """Whether two texts pass the test, case aside; false if one is an array or object."""
    return lambda left, right: (
        is_primitive(left) and is_primitive(right) and test(values.fold(to_string(left)), values.fold(to_string(right)))
    )


def _format(template: Value, *arguments: Value) -> str:
    """The arguments at {0}, {1}, …; {{ and }} stand for braces."""
    text, end, pieces = to_string(template), 0, list[str]()
    for item in _FORMAT_ITEM.finditer(text):
        if item[1] is None and item[0] not in ("{{", "}}"):
            raise ValueError(f"format: {text!r} has a brace that is neither {{0}} nor doubled as {{{{ or }}}}")
        # Compared by length first: Python refuses to read integers of thousands of digits.
        if item[1] and (len(item[1]) > 3 or int(item[1]) >= len(arguments)):
            raise ValueError(f"format: {text!r} asks for {item[0]}, but there are {len(arguments)} arguments")
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
        return _joined([json.dumps(plain(value), indent=2, ensure_ascii=False)])
    except RecursionError:
        raise ValueError("toJSON: the value is nested too deeply") from None


def _from_json(text: Value) -> Value:
    """The value of a JSON text; a primitive that is no string is read as its text, so fromJSON(true) is true."""
    source = to_string(text)

    def number(digits: str) -> Value:
        return values.as_number(float(digits))

    try:
        # Not strict: GitHub's parser, Newtonsoft.Json, takes line ends and tabs inside strings.
        value: Value = json.loads(_strict_json(source), parse_int=number, parse_float=number, strict=False)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise ValueError(f"fromJSON: not JSON ({why}): {truncated(source, 200)!r}") from None
    return value


_LENIENT = re.compile(r"""("(?:[^"\\]|\\.)*")|'((?:[^'\\]|\\.)*)'|,(?=\s*[\]}])""", re.DOTALL)


def _strict_json(text: str) -> str:
    """With what Newtonsoft.Json takes beside JSON written as JSON: single quotes, and a comma behind the last item."""

    def strict(found: re.Match[str]) -> str:
        if found[2] is None:
            return found[1] or ""
        return '"' + found[2].replace("\\'", "'").replace('"', '\\"') + '"'

    return _LENIENT.sub(strict, text)


def _by_the_evaluation(*_: Value) -> Value:
    raise AssertionError("depends on more than its arguments' values")


HASH_FILES = "hashFiles"  # of the files that the job has when the step begins
_TESTS = ("contains", "endsWith", "startsWith")  # give a boolean and no text of their arguments
STATUS_FUNCTIONS = ("success", "failure", "always", "cancelled")
# The fewest and the most arguments, and what is called with their values. 255 is GitHub's own upper bound. success()
# and failure() take job names in a job's `if` on GitHub's side, which its documentation does not offer; here they take
# none.
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Value]]] = {
    "case": (3, 255, _by_the_evaluation),
    "contains": (2, 2, _contains),
    "endsWith": (2, 2, _compare_text(str.endswith)),
    "format": (1, 255, _format),
    "fromJSON": (1, 1, _from_json),
    HASH_FILES: (1, 255, lambda *_: Unknown.named_value(HASH_FILES)),
    "join": (1, 2, _join),
    "startsWith": (2, 2, _compare_text(str.startswith)),
    "toJSON": (1, 1, _to_json),
    **dict.fromkeys(STATUS_FUNCTIONS, (0, 0, _by_the_evaluation)),
}
_SPELLINGS = {name.lower(): name for name in _FUNCTIONS}


# -- the grammar -------------------------------------------------------------------------------------------------------


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


_CONTEXTS = (
    *("github", "env", "matrix", "inputs", "secrets", "needs"),
    *("steps", "runner", "vars", "job", "jobs", "strategy"),
)
_MAX_DEPTH = 50  # ExpressionConstants.MaxDepth in the runner
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

    Raises ExpressionError if the text is empty or no expression, names an unknown context or function, has a call with
    a wrong number of arguments, or is nested more than 50 deep.
    """
    too_deep = ExpressionError(f"nested more than {_MAX_DEPTH} deep", text, 0)
    try:
        root = _Parser(text).whole()
    except RecursionError:
        raise too_deep from None
    # As GitHub counts: an unbroken chain of && or of || is one level, however long.
    pending = [(root, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > _MAX_DEPTH:
            raise too_deep
        chained = node.kind if node.kind in ("&&", "||") else None
        pending += [(part, depth if part.kind == chained else depth + 1) for part in node.parts]
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
            if token.text.lower() not in _CONTEXTS:
                self._refuse_name("context", token, _CONTEXTS)
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
                is_name = token.kind == "word"
                node = Node("property" if is_name else "wildcard", token.text if is_name else None, (node,))
            elif self._accept("["):
                is_all = self._accept("*")
                node = Node("wildcard", None, (node,)) if is_all else Node("index", None, (node, self._binary(0)))
                self._expect("]")
            else:
                return node

    def _call(self, token: _Token) -> Node:
        if token.text.lower() not in _SPELLINGS:
            self._refuse_name("function", token, tuple(_FUNCTIONS))
        name = _SPELLINGS[token.text.lower()]
        arguments: list[Node] = []
        while not self._accept(")"):
            if arguments:
                self._expect(",")
            arguments.append(self._binary(0))
        (fewest, most, _), count = _FUNCTIONS[name], len(arguments)
        if not fewest <= count <= most:
            arity, noun = " to ".join(map(str, sorted({fewest, most}))), "argument" if most == 1 else "arguments"
            self._refuse(f"{name} takes {arity} {noun}, not {count}", token.position)
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
            if isnan(number := values.parse_number(text)):
                self._refuse(f"{text!r} is not a number", position)
            return _Token(kind, text, position, values.as_number(number))
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
