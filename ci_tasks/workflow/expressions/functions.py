"""The functions of GitHub's expressions: their names, how many arguments each takes, and what they return.

From the documentation page "Evaluate expressions in workflows and actions" (Functions, Status check functions), and
from actions/runner's C# source (`ExpressionConstants`, `Sdk/Functions/*`) for coercions, arities and edge cases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from ci_tasks.agent.quick_dataclass import dataclass

from .values import Value, as_number, fold, is_primitive, kind, loose_equal, to_string

MAX_TEXT = 1_000_000  # characters
_FORMAT_ITEM = re.compile(r"\{\{|\}\}|\{([0-9]+)\}|[{}]")


class FunctionError(Exception):
    """Why a function refuses its arguments; `evaluate` adds the expression and the place."""


@dataclass(frozen=True)
class Function:
    """A function's name as GitHub spells it, its arity, and its body.

    A body of None marks one that `evaluate` does itself: the status functions depend on the job, `case` is lazy. One
    that `tests` gives a boolean and no text of its arguments.
    """

    name: str
    minimum: int
    maximum: int
    body: Callable[..., Value] | None = None
    tests: bool = False

    def refusal(self, count: int) -> str:
        """Why it takes no such number of arguments; "" if it does."""
        if not self.minimum <= count <= self.maximum:
            arity = " to ".join(map(str, sorted({self.minimum, self.maximum})))
            return f"{self.name} takes {arity} {'argument' if self.maximum == 1 else 'arguments'}, not {count}"
        is_even = self.name == "case" and count % 2 == 0
        return f"case takes pairs of a condition and a value, then a default: {count} is even" if is_even else ""


def joined(pieces: Sequence[str], separator: str = "") -> str:
    """The pieces as one text. Raises FunctionError, before it is made, for one of more than 1 MB: calls in calls soon
    make more than any memory holds."""
    if sum(map(len, pieces)) + len(separator) * len(pieces) > MAX_TEXT:
        raise FunctionError(f"the text has more than {MAX_TEXT:,} characters")
    return separator.join(pieces)


def contains(search: Value, item: Value) -> bool:
    """Whether an array has a loosely equal item, or a primitive's text holds the other's, case aside."""
    if isinstance(search, list):
        return any(loose_equal(item, member) for member in search)
    return _compare_text(search, item, str.__contains__)


def starts_with(search: Value, prefix: Value) -> bool:
    """Whether the text begins with the other, case aside; false where one is an array or object."""
    return _compare_text(search, prefix, str.startswith)


def ends_with(search: Value, suffix: Value) -> bool:
    """Whether the text ends with the other, case aside; false where one is an array or object."""
    return _compare_text(search, suffix, str.endswith)


def format_(template: Value, *arguments: Value) -> str:
    """Put the arguments at {0}, {1}, …; {{ and }} stand for braces.

    Raises FunctionError for a lone brace, a format specifier such as {0:x}, or an index without an argument.
    """
    text, end, pieces = to_string(template), 0, list[str]()
    for item in _FORMAT_ITEM.finditer(text):
        if item[1] is None and item[0] not in ("{{", "}}"):
            raise FunctionError(f"format: {text!r} has a brace that is neither {{0}} nor doubled as {{{{ or }}}}")
        # Compared by length first: Python refuses to read integers of thousands of digits.
        if item[1] and (len(item[1]) > 3 or int(item[1]) >= len(arguments)):
            raise FunctionError(f"format: {text!r} asks for {item[0]}, but there are {len(arguments)} arguments")
        pieces += [text[end : item.start()], to_string(arguments[int(item[1])]) if item[1] else item[0][0]]
        end = item.end()
    return joined([*pieces, text[end:]])


def join(items: Value, separator: Value = ",") -> str:
    """The texts of an array's items with a separator between; a primitive's own text; '' of an object."""
    if isinstance(items, list):
        return joined(list(map(to_string, items)), to_string(separator) if is_primitive(separator) else ",")
    return to_string(items) if is_primitive(items) else ""


def to_json(value: Value) -> str:
    """The value as JSON over several lines, indented by two spaces; numbers as in text, so NaN stays NaN.

    Raises FunctionError when the value is nested too deeply.
    """
    try:
        return _json(value, "\n")
    except RecursionError:
        raise FunctionError("toJSON: the value is nested too deeply") from None


def from_json(text: Value) -> Value:
    """The value of a JSON text; a primitive that is no string is read as its text, so fromJSON(true) is true.

    Raises FunctionError with the text when it is not JSON.
    """
    source = to_string(text)

    def number(digits: str) -> Value:
        return as_number(float(digits))

    try:
        # Not strict: GitHub's parser, Newtonsoft.Json, takes line ends and tabs inside strings.
        value: Value = json.loads(source, parse_int=number, parse_float=number, strict=False)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "nested too deeply"
        shown = source if len(source) <= 200 else f"{source[:200]}…"
        raise FunctionError(f"fromJSON: not JSON ({why}): {shown!r}") from None
    return value


def hash_files(*patterns: Value) -> Value:
    """Always raises FunctionError: this room sees no files."""
    raise FunctionError("hashFiles needs the files of the checkout and is not supported")


def _compare_text(left: Value, right: Value, test: Callable[[str, str], bool]) -> bool:
    return is_primitive(left) and is_primitive(right) and test(fold(to_string(left)), fold(to_string(right)))


def _json(value: Value, line: str) -> str:
    """JSON of a value that starts at the indentation of `line`, a newline and some spaces."""
    inner = line + "  "
    if isinstance(value, list) and value:
        return "[" + ",".join(inner + _json(item, inner) for item in value) + line + "]"
    if isinstance(value, dict) and value:
        pairs = (f"{inner}{_json_string(key)}: {_json(item, inner)}" for key, item in value.items())
        return "{" + ",".join(pairs) + line + "}"
    if isinstance(value, str):
        return _json_string(value)
    return {"Null": "null", "Array": "[]", "Object": "{}"}.get(kind(value)) or to_string(value)


def _json_string(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    # Newtonsoft.Json, which GitHub uses, also escapes these three line ends.
    return re.sub("[\x85\u2028\u2029]", lambda char: f"\\u{ord(char[0]):04x}", quoted)


STATUS_FUNCTIONS = ("success", "failure", "always", "cancelled")

# 255 is GitHub's own upper bound. success() and failure() take job names in a job's `if` on GitHub's side, which its
# documentation does not offer; here they take none.
_ALL = (
    Function("case", 3, 255),
    Function("contains", 2, 2, contains, tests=True),
    Function("endsWith", 2, 2, ends_with, tests=True),
    Function("format", 1, 255, format_),
    Function("fromJSON", 1, 1, from_json),
    Function("hashFiles", 1, 255, hash_files),
    Function("join", 1, 2, join),
    Function("startsWith", 2, 2, starts_with, tests=True),
    Function("toJSON", 1, 1, to_json),
    *(Function(name, 0, 0) for name in STATUS_FUNCTIONS),
)

FUNCTIONS = {function.name.lower(): function for function in _ALL}
