"""The forms in which a secret is searched for: as it is, by lines, and as base64, URLs, JSON and XML write it. Pure.

Half of a long value counts as the value: pytest, for one, cuts long lines.

A value that is a word, or short, is masked only where no letter or digit stands beside it, else it would blank out half
a log. A value shorter than MIN_LENGTH, a small number, or a word that every log is made of is not masked at all:
whoever keeps one as a secret protects nothing, and loses the log.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from typing import FrozenSet, Iterable, Iterator, List, Tuple, Union

from .quick_dataclass import dataclass

MIN_LENGTH = 4
SHORT = 8  # characters: below that, a value is masked only as a whole word
WORD = 16  # characters: the same of one that has only digits, or only letters of one case
NUMBER = 6  # digits: shorter numbers are not masked
MIN_PART = 12  # characters of a longer value that count as the value
MAX_PART = 32
_MIN_ENCODED = 8  # characters of base64 that do not occur by chance
_QUOTES = [(double, single) for double in ('"', "&quot;") for single in ("'", "&#39;", "&#x27;", "&apos;")]
_ORDINARY = """\
auto cpu cuda debug default development docker error errors fail failed failure false github gpu info latest linux local
localhost main master name none null offline online pass passed prod production python release root skipped slime
staging test tests true user verl warning
blocked cancelled collecting container ended exit killed lost planned pull resumed running stalled started starting step
timeout vacuous waiting"""
ORDINARY = frozenset(_ORDINARY.split())


@dataclass(frozen=True)
class SecretForm:
    """`text` is masked as far as it stands there, from `head` on, which is searched for. `is_word`: only where it
    stands alone."""

    text: bytes
    head: bytes
    is_word: bool = False


class SecretForms:
    """What to search for. `prefixes` are all beginnings of all heads, `firsts` their first bytes."""

    def __init__(self, values: Iterable[str]) -> None:
        self.forms: List[SecretForm] = list(dict.fromkeys(form for value in values for form in _forms(value)))
        heads = [form.head for form in self.forms]
        self.prefixes: FrozenSet[bytes] = frozenset(head[:end] for head in heads for end in range(1, len(head)))
        self.firsts: FrozenSet[int] = frozenset(head[0] for head in heads)
        self.longest_head = max(map(len, heads), default=0)


@functools.lru_cache(64)
def secret_forms(values: Tuple[str, ...]) -> SecretForms:
    return SecretForms(values)


def is_maskable(value: str) -> bool:
    """Whether a value is masked at all."""
    text = value.strip()
    is_number = text.isdigit() and len(text) < NUMBER
    return len(text) >= MIN_LENGTH and not is_number and text.lower() not in ORDINARY


def os_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _forms(value: str) -> Iterator[SecretForm]:
    value = value.strip()
    if not is_maskable(value):
        return
    for text in (value, *map(str.strip, value.splitlines())):  # the lines of a key are printed one by one
        if is_maskable(text) and _is_word(text):
            yield from (SecretForm(written, written, is_word=True) for written in _written(text))
        elif is_maskable(text):
            yield from (SecretForm(written, written[: _half(written)]) for written in _written(text))
            # Not the last half of what was written: it could begin inside of an escape.
            yield from (SecretForm(written, written) for written in _written(text[-_half(text) :]))
    for written in _base64(os_bytes(value)):
        if len(written) >= _MIN_ENCODED:
            yield SecretForm(written, written[: _half(written)])


def _is_word(value: str) -> bool:
    is_plain = value.isdigit() or (value.isalpha() and value in (value.lower(), value.upper(), value.capitalize()))
    return len(value) < SHORT or (len(value) < WORD and is_plain)


def _half(text: Union[str, bytes]) -> int:
    return min(MAX_PART, max(MIN_PART, (len(text) + 1) // 2))


def _written(text: str) -> Iterator[bytes]:
    """`text` as it is, in URLs, in JSON and in XML."""
    data = os_bytes(text)
    yield data
    for plain in (rb"[^A-Za-z0-9_.~-]", rb"[^A-Za-z0-9_.~/-]"):
        for digits in (b"%%%02X", b"%%%02x"):
            url = re.sub(plain, lambda char, digits=digits: digits % char[0][0], data)
            yield from (url, url.replace(b"%20", b"+"))
    for only_ascii in (True, False):
        shown = os_bytes(json.dumps(text, ensure_ascii=only_ascii)[1:-1])
        yield from (shown, shown.replace(b"/", b"\\/"))
    shown_in_xml = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for double, single in _QUOTES:
        yield os_bytes(shown_in_xml.replace('"', double).replace("'", single))


def _base64(data: bytes) -> Iterator[bytes]:
    for offset in range(3):  # where the value begins in a group of three bytes
        start = (8 * offset + 5) // 6
        core = base64.b64encode(b"\0" * offset + data)[start : 8 * (offset + len(data)) // 6]
        yield from (core, core.translate(bytes.maketrans(b"+/", b"-_")))
