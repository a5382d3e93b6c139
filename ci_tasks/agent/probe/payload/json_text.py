"""JSON in ASCII. The module `json` takes longer to import than all of this."""

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any


def json_text(value: "Any") -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%s: %s" % (_quoted(str(key)), json_text(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return "[%s]" % ", ".join(map(json_text, value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)  # a number


def _quoted(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return '"%s"' % text
    return '"%s"' % "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    number = ord(char)
    if char in '"\\':
        return "\\" + char
    if 32 <= number < 127:
        return char
    if number < 0x10000:
        return "\\u%04x" % number
    number -= 0x10000
    return "\\u%04x\\u%04x" % (0xD800 + (number >> 10), 0xDC00 + (number & 0x3FF))
