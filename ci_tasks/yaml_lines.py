"""YAML text → plain values that remember their lines, so that every error can name one.

Two things differ from `yaml.safe_load`, both because GitHub reads workflows as YAML 1.2: `on`, `off`, `yes` and `no` are
words, and a key that stands twice is an error instead of a silent replacement.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_OCT_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class YamlError(Exception):
    """Text that is not YAML: `line` is 1-based, `text` is that line."""

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
    """A scalar with the line where it begins; block scalars begin one line after their key."""

    line: int = 0


def load(text: str) -> Any:
    """The value of a YAML document: Map, list, Text, int, float, bool or None. Raises YamlError."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise YamlError(str(error.problem or error), line, _line_of(text, line)) from None
    except yaml.YAMLError as error:
        raise YamlError(str(error), 1, _line_of(text, 1)) from None
    return _value(node, text) if node else None


def _value(node: yaml.Node, source: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, source)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, source) for item in node.value]
    if not node.style:  # plain: "" from the C parser, None from the Python one
        return _plain(node)
    return _text(node)


def _mapping(node: yaml.MappingNode, source: str) -> Map:
    found = Map(node.start_mark.line + 1)
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = str(key_node.value)
        if key in found:
            raise YamlError(f"the key {key!r} stands twice", line, _line_of(source, line))
        found[key] = _value(value_node, source)
        found.lines[key] = line
    return found


def _plain(node: yaml.Node) -> Any:
    text = str(node.value)
    if _INT.fullmatch(text):
        return int(text)
    if _OCT_HEX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    return _text(node)


def _text(node: yaml.Node) -> Text:
    text = Text(node.value)
    text.line = node.start_mark.line + 1 + (1 if node.style in ("|", ">") else 0)
    return text


def _line_of(text: str, line: int) -> str:
    lines = text.splitlines()
    return lines[line - 1] if 0 < line <= len(lines) else ""
