"""YAML text → plain values that remember their lines, so that every error can name one.

What differs from `yaml.safe_load` is what GitHub does, which reads workflows as YAML 1.2: `on`, `off`, `yes` and `no`
are strings, a duplicate key is an error instead of a silent replacement, anchors are followed but nothing is
merged by `<<`, and a text with too many values, counting aliases, is refused.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

_BaseLoader: Any = yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader
# Of YAML 1.2's core schema; GitHub's reader spells out the same.
_WORDS = {
    **dict.fromkeys(("~", "null", "Null", "NULL", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{f"{sign}.{word}": math.inf for sign in ("", "+") for word in ("inf", "Inf", "INF")},
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_NUMBER = re.compile(
    r"(?P<integer>[-+]?[0-9]+)|(?P<based>0o[0-7]+|0x[0-9a-fA-F]+)"
    r"|(?P<float>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)"
)

MAX_NODES = 200_000  # GitHub stops at 50,000, aliases counted each time they are followed
MAX_DEPTH = 100
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_SAFE_DEPTH = 5_000


class _Loader(_BaseLoader):  # type: ignore[misc]
    """Without PyYAML's search for the type of each scalar: YAML 1.1's, which is not used here."""

    def resolve(self, *_: Any) -> str:
        return ""

    def descend_resolver(self, *_: Any) -> None:
        pass

    def ascend_resolver(self) -> None:
        pass


class YamlError(Exception):
    """Text that is invalid YAML: `line` is 1-based, `text` is that line."""

    def __init__(self, message: str, line: int, text: str) -> None:
        super().__init__(message)
        self.message, self.line, self.text = message, line, text


class Map(dict[str, Any]):
    """A mapping with the line where it begins and the line of each key (1-based)."""

    line: int = 0

    def __init__(self, line: int = 0) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class Text(str):
    """A scalar with the line where it begins; block scalars begin one line after their key.

    `source` has the file's own lines from there on where there are several: a folded scalar's value has lost them.
    """

    line: int = 0
    source: tuple[str, ...] = ()


def load(text: str) -> Any:
    """The value of a YAML document: Map, list, Text, int, float, bool or None. Raises YamlError."""
    try:
        _check_depth(text)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        context = _line_of(text, line)
        tab = "; YAML is indented with spaces, not tabs" if re.match(r" *\t", context) else ""
        # libyaml's own limit, which PyYAML has since 6.0.4 and meets first in `[[[[…`.
        problem = _TOO_DEEP if error.problem == "exceeded maximum nesting depth" else error.problem or str(error)
        raise YamlError(f"{problem}{tab}", line, context) from None
    except yaml.YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise YamlError(str(error).splitlines()[0], line, _line_of(text, line)) from None
    return _Document(text).value(node, 0) if node else None


def _check_depth(text: str) -> None:
    """Refuse nesting that would overflow the C composer's stack. Ordinary text is not parsed for it."""
    if text.count("[") + text.count("{") + max(map(len, text.splitlines()), default=0) < _SAFE_DEPTH:
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise YamlError(_TOO_DEEP, line, _line_of(text, line))


class _Document:
    """Turns nodes into values. An alias is the node of its anchor once more."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines()
        self.nodes = 0

    def value(self, node: yaml.Node, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.error(f"more than {MAX_NODES} values, counting aliases", node)
        if depth > MAX_DEPTH:
            raise self.error(_TOO_DEEP, node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, depth + 1) for item in node.value]
        assert isinstance(node, yaml.ScalarNode), "YAML has three kinds of nodes"
        if node.style:  # plain: "" from the C parser, None from the Python one
            return self.scalar(node)
        plain = _plain(node.value)
        return self.scalar(node) if isinstance(plain, str) else plain

    def mapping(self, node: yaml.MappingNode, depth: int) -> Map:
        mapping = Map(node.start_mark.line + 1)
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.error("a key must be a scalar, not a list or a mapping", key_node)
            key = str(key_node.value)
            if key in mapping:
                raise self.error(f"duplicate key {key!r}", key_node)
            if key == "<<" and not key_node.style:
                raise self.error("merge keys (`<<`) are not supported, as in GitHub's workflows", key_node)
            mapping[key] = self.value(value_node, depth + 1)
            mapping.lines[key] = key_node.start_mark.line + 1
        return mapping

    def scalar(self, node: yaml.ScalarNode) -> Text:
        text = Text(node.value)
        first = node.start_mark.line + (1 if node.style in ("|", ">") else 0)
        text.line = first + 1
        end = node.end_mark.line + (1 if node.end_mark.column else 0)
        if end - first > 1:
            text.source = tuple(self.lines[first:end])
        return text

    def error(self, message: str, node: yaml.Node) -> YamlError:
        line = node.start_mark.line + 1
        return YamlError(message, line, _line_of(self.text, line))


def _plain(text: str) -> Any:
    """The value of an unquoted scalar, which is `text` itself for most."""
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    if number["based"]:
        return int(text, 0)
    # Python does not read integers of thousands of digits.
    return int(text) if number["integer"] and len(text) < 300 else float(text)


def _line_of(text: str, line: int) -> str:
    lines = text.splitlines()
    return lines[line - 1] if 0 < line <= len(lines) else ""
