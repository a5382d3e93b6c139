"""YAML text → plain values that remember their lines, so that every error can name one.

What differs from `yaml.safe_load` is what GitHub does, which reads workflows as YAML 1.2: `on`, `off`, `yes` and `no`
are strings, a duplicate key is an error instead of a silent replacement, anchors are followed but nothing is
merged by `<<`, and a text with too many values, counting aliases, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

_LOADER: Any = yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader
# Of YAML 1.2's core schema; GitHub's reader spells out the same.
_WORDS = {
    **dict.fromkeys(("~", "", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")

MAX_NODES = 200_000  # GitHub stops at 50,000, aliases counted each time they are followed
MAX_DEPTH = 100
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_SAFE_DEPTH = 5_000


class YamlError(Exception):
    """Text that is invalid YAML: `line` is 1-based, `text` is that line."""

    def __init__(self, message: str, line: int, source: str) -> None:
        super().__init__(message)
        self.message, self.line, self.text = message, line, "".join(source.splitlines()[line - 1 : line])


class Map(dict[str, Any]):
    """A mapping with the line where it begins and the line of each key (1-based), or what stands for a line."""

    def __init__(self, line: Any = 0) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, Any] = {}


class Text(str):
    """A scalar with the line where it begins; block scalars begin one line after their key.

    `source` has the file's own lines from there on if there are several: a folded scalar's value has lost them.
    """

    line: Any = 0
    source: tuple[str, ...] = ()


def load(text: str, line_of: Callable[[int], Any] = int) -> Any:
    """The value of a YAML document: Map, list, Text, int, float, bool or None. `line_of` makes what stands for a line
    number. Raises YamlError."""
    try:
        _check_depth(text)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(error.problem or str(error), mark.line + 1 if mark else 1, text) from None
    except yaml.YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise YamlError(str(error).splitlines()[0], line, text) from None
    return _Document(text, line_of).value(node, 0) if node else None


def _check_depth(text: str) -> None:
    """Refuse nesting that would overflow the C composer's stack. Ordinary text is not parsed for it."""
    if text.count("[") + text.count("{") + max(map(len, text.splitlines()), default=0) < _SAFE_DEPTH:
        return
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise YamlError(_TOO_DEEP, event.start_mark.line + 1 if event.start_mark else 1, text)


class _Document:
    """Turns nodes into values. An alias is the node of its anchor once more."""

    def __init__(self, text: str, line_of: Callable[[int], Any]) -> None:
        self.text = text
        self.line_of = line_of
        self.lines = text.splitlines()
        self.nodes = 0

    def value(self, node: Any, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            many = f"more than {MAX_NODES} values, counting aliases"
            raise self.error(_TOO_DEEP if depth > MAX_DEPTH else many, node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, depth + 1) for item in node.value]
        # the style of a plain scalar is "" from the C parser, None from the Python one
        plain = node.value if node.style else _plain(node.value)
        return self.scalar(node) if isinstance(plain, str) else plain

    def mapping(self, node: yaml.MappingNode, depth: int) -> Map:
        mapping = Map(self.line_of(node.start_mark.line + 1))
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.error("a key must be a scalar, not a list or a mapping", key_node)
            key = str(key_node.value)
            if key in mapping:
                raise self.error(f"duplicate key {key!r}", key_node)
            if key == "<<" and not key_node.style:
                raise self.error("merge keys (`<<`) are not supported, as in GitHub's workflows", key_node)
            mapping[key] = self.value(value_node, depth + 1)
            mapping.lines[key] = self.line_of(key_node.start_mark.line + 1)
        return mapping

    def scalar(self, node: yaml.ScalarNode) -> Text:
        text = Text(node.value)
        first = node.start_mark.line + (1 if node.style in ("|", ">") else 0)
        text.line = self.line_of(first + 1)
        end = node.end_mark.line + (1 if node.end_mark.column else 0)
        if end - first > 1:
            text.source = tuple(self.lines[first:end])
        return text

    def error(self, message: str, node: yaml.Node) -> YamlError:
        return YamlError(message, node.start_mark.line + 1, self.text)


def _plain(text: str) -> Any:
    """The value of an unquoted scalar, which is `text` itself for most."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):  # Python does not read integers of thousands of digits
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
