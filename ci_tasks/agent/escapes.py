"""Undoes the escapes in which programs print a text: URLs, JSON, XML and HTML, Python's repr, shell quotes, colors, and
the line breaks inside base64. Pure.

They are undone all at once and one layer at a time, since a log mixes them. Only a search reads the result, so nothing
depends on which program wrote which piece. For speed, only those escapes are undone that can be a part of what is
searched for, or of an escape again, and only the text near them becomes a part of the next layer.
"""

from __future__ import annotations

import bisect
import functools
import re
import string
from typing import Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Tuple

LAYERS = 3  # JSON in XML in a URL
_STARTS = frozenset(b"%\\&#;")
_BASE64 = rb"[A-Za-z0-9+/_-]"
_COLOR = rb"\[[0-9;:?]*[A-Za-z]"
_NAMES = {
    "quot": '"', "amp": "&", "apos": "'", "lt": "<", "gt": ">", "sol": "/", "bsol": "\\", "plus": "+", "equals": "=",
    "lowbar": "_", "hyphen": "-", "period": ".", "comma": ",", "colon": ":", "semi": ";", "quest": "?", "excl": "!",
    "num": "#", "dollar": "$", "percnt": "%", "ast": "*", "commat": "@", "lpar": "(", "rpar": ")", "lsqb": "[",
    "rsqb": "]", "lcub": "{", "rcub": "}", "verbar": "|", "grave": "`", "Hat": "^",
}  # fmt: skip
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_CUT_LENGTH = 64
_SEPARATOR = b"\0"  # no environment variable has one

Span = Tuple[int, int]


class _Piece(NamedTuple):
    """What begins at `start` of a layer comes from `source` of the layer below. `length` is that of its escape there, 0
    where it was not escaped."""

    start: int
    source: int
    length: int


class EscapeLayer:
    """A text with some layers of escapes undone. `span` says where a part of it stands in the original.

    `end` is where it ends in the original, if it does so where that ends."""

    def __init__(self, text: bytes, end: Optional[int], below: Optional[EscapeLayer] = None) -> None:
        self.text, self.end = text, end
        self._below = below
        self._pieces: List[_Piece] = []
        self._gaps: List[int] = []  # where escapes were undone

    def span(self, start: int, end: int) -> Span:
        if self._below is None:
            return start, end
        first, last = self._piece(start), self._piece(end - 1)
        begin = first.source if first.length else first.source + start - first.start
        return self._below.span(begin, last.source + (last.length or end - last.start))

    def is_new(self, start: int, end: int) -> bool:
        """Whether the layer below does not have this part of the text."""
        if self._below is None:
            return True
        at = bisect.bisect_left(self._gaps, start)
        return at < len(self._gaps) and self._gaps[at] < end

    def _piece(self, at: int) -> _Piece:
        return self._pieces[bisect.bisect_right(self._pieces, (at, 1 << 62, 0)) - 1]


class Unescaper:
    """Undoes the escapes of what `texts` consist of."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        texts = list(texts)
        self._reach = max(map(len, texts), default=0) + 2
        codes = frozenset(b"".join(texts))
        self._patterns = _patterns(codes)
        self._cut = _cut_pattern(codes)

    def layers(self, text: bytes, is_end: bool) -> List[EscapeLayer]:
        """`text` as it stands, and with one layer of escapes undone after the other. Unless `is_end`, an escape that
        the end of the text may cut is left out."""
        found = [self._without_cut(EscapeLayer(text, len(text)), is_end)]
        while len(found) <= LAYERS:
            layer = self._undone(found[-1])
            if layer is None:
                break
            found.append(self._without_cut(layer, is_end))
        return found

    def _without_cut(self, layer: EscapeLayer, is_end: bool) -> EscapeLayer:
        if is_end or layer.end is None:
            return layer
        cut = self._cut.search(layer.text, max(0, len(layer.text) - _CUT_LENGTH))
        if cut is not None:
            layer.end = layer.span(cut.start(), len(layer.text))[0]
            layer.text = layer.text[: cut.start()]
        return layer

    def _undone(self, below: EscapeLayer) -> Optional[EscapeLayer]:
        """The text near the escapes of `below`, with these undone; None where there are none."""
        patterns = [pattern for first, pattern in self._patterns.items() if first in below.text]
        escapes = sorted(match.span() for pattern in patterns for match in pattern.finditer(below.text))
        if not escapes:
            return None
        parts: List[bytes] = []
        layer, length, at = EscapeLayer(b"", None, below), 0, -1
        for start, end in escapes:
            if start < at:
                continue  # inside of the one before
            begin = max(at, start - self._reach, 0)
            if at >= 0 and begin > at + self._reach:
                stop = at + self._reach
                parts += [below.text[at:stop], _SEPARATOR]
                layer._pieces += [_Piece(length, at, 0), _Piece(length + stop - at, stop, 1)]
                length += stop - at + 1
            elif at >= 0:
                begin = at
            layer._pieces.append(_Piece(length, begin, 0))
            length += start - begin
            undone = _value(below.text[start:end])
            parts += [below.text[begin:start], undone]
            layer._gaps.append(length)
            if undone:
                layer._pieces.append(_Piece(length, start, end - start))
                length += len(undone)
            at = end
        stop = min(len(below.text), at + self._reach)
        layer._pieces.append(_Piece(length, at, 0))
        layer.text = b"".join([*parts, below.text[at:stop]])
        layer.end = below.end if stop == len(below.text) else None
        return layer


def undone_in_part(text: bytes) -> List[bytes]:
    """`text` with the escapes of some kinds undone and those of others left, for each choice of kinds: what a layer
    shows of it when it was written with the escapes that are left."""
    texts = [text]
    for pattern in list(_patterns(frozenset(range(256))).values())[:3]:
        texts += [pattern.sub(lambda match: _value(match[0]), other) for other in texts]
    return list(dict.fromkeys(texts))


@functools.lru_cache(64)
def _patterns(codes: FrozenSet[int]) -> "Dict[bytes, re.Pattern[bytes]]":
    """One for each first byte: few texts have them all, and the search for a byte is fast."""
    has_backslash = ord("\\") in codes
    codes = codes | _STARTS
    is_ascii = max(codes) < 128
    pairs = _hex_pairs(codes)
    punctuation = [char for char in string.punctuation + " " if ord(char) in codes and char != "\\"]
    letters = [letter for letter, char in _LETTERS.items() if ord(char) in codes]
    followers = b"(?=[%s])" % re.escape("".join(["\\", "uUx01234567", *punctuation, *letters]).encode())
    unicode = rb"u00(?:%s)|U000000(?:%s)" % (pairs, pairs)
    numbers = b"0*(?:%s)|[xX]0*(?:%s)" % (b"|".join(b"%d" % code for code in sorted(codes, reverse=True)), pairs)
    if not is_ascii:
        unicode = rb"u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}"
        numbers = rb"[0-9]{1,7}|[xX][0-9A-Fa-f]{1,6}"
    names = b"|".join(name.encode() for name, char in _NAMES.items() if ord(char) in codes)
    kinds = [unicode, rb"x(?:%s)" % pairs, rb"[0-3][0-7]{2}", rb"\\" + (b"" if has_backslash else followers)]
    literal = "".join([*punctuation, *letters]).encode() + bytes(code for code in sorted(codes) if code > 127)
    if literal:
        kinds.append(b"[%s]" % re.escape(literal))
    inside = b"[%s]" % re.escape(bytes(sorted(codes - frozenset(b"\r\n"))))
    patterns = {
        b"%": b"%(?:" + pairs + b")",
        b"\\": rb"\\(?:" + b"|".join(kinds) + b")",
        b"&": b"&(?:#(?:" + numbers + b")|" + names + b");",
        b"\x1b": rb"\x1b(?<=" + inside + rb"\x1b)" + _COLOR + rb"(?:\x1b" + _COLOR + b")*(?=" + inside + b")",
        b"\n": rb"\n(?<=" + _BASE64 + rb"{60}\n)",
        b"\r": rb"\r(?<=" + _BASE64 + rb"{60}\r)\n",
    }
    if ord("'") in codes:
        patterns[b"'"] = rb"""'(?:\\''|"'"')"""
    return {first: re.compile(pattern) for first, pattern in patterns.items()}


def _cut_pattern(codes: FrozenSet[int]) -> "re.Pattern[bytes]":
    """What the end of a text may cut. It may match more than that: it is decided with the next bytes."""
    quotes = rb"[\\'\"]" if ord("'") in codes else rb"\\"
    pair = rb"u[dD][89abAB][0-9A-Fa-f]{2}(?:\\u?[0-9A-Fa-f]{0,3})?"
    kinds = [
        quotes + rb"*%[0-9A-Fa-f]?",
        quotes + rb"*&#?[A-Za-z0-9]{0,31}",
        quotes + b"+",
        quotes + rb"*\\(?:" + pair + rb"|u[0-9A-Fa-f]{0,3}|U[0-9A-Fa-f]{0,7}|x[0-9A-Fa-f]?|[0-7]{1,2})",
        rb"(?:\x1b" + _COLOR + rb")+",
        rb"(?:\x1b" + _COLOR + rb")*\x1b(?:\[[0-9;:?]{0,31})?",
        rb"(?<=" + _BASE64 + rb"{60})\r",
    ]
    return re.compile(b"(?:" + b"|".join(kinds) + rb")\Z")


def _hex_pairs(codes: FrozenSet[int]) -> bytes:
    """A pattern for the codes as two hexadecimal digits of either case."""
    by_first: Dict[str, str] = {}
    for code in sorted(codes):
        pair = "%02x" % code
        by_first[pair[0]] = by_first.get(pair[0], "") + pair[1]
    return "|".join(
        "[%s%s][%s%s]" % (first, first.upper(), seconds, seconds.upper()) for first, seconds in by_first.items()
    ).encode()


@functools.lru_cache(4096)
def _value(escape: bytes) -> bytes:
    first, kind = escape[:1], escape[1:2]
    if first == b"%":
        return bytes([int(escape[1:], 16)])
    if first == b"&":
        return _reference(escape[1:-1].decode())
    if first == b"'":
        return b"'"
    if first != b"\\":
        return b""  # a color, or a line break
    if kind == b"u" and len(escape) == 12:
        return escape.decode("unicode_escape").encode("utf-16", "surrogatepass").decode("utf-16").encode()
    if kind in (b"u", b"U"):
        return _character(int(escape[2:], 16))
    if kind == b"x":
        return bytes([int(escape[2:], 16)])
    if kind.isdigit():
        return bytes([int(escape[1:], 8) & 255])
    return _LETTERS.get(kind.decode("latin-1"), "").encode() or kind


def _reference(name: str) -> bytes:
    if name[0] != "#":
        return _NAMES[name].encode()
    return _character(int(name[2:], 16) if name[1] in "xX" else int(name[1:]))


def _character(number: int) -> bytes:
    return chr(number).encode("utf-8", "surrogatepass") if number < 0x110000 else b""
