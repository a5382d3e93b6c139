"""The forms in which a secret may stand in a text, and what of it is searched for. Pure.

Escapes are undone before the search (see `escapes`), so that a form is needed only for what cannot be undone in place:
base64, base32, hexadecimal digits and UTF-16. Half of a long value counts as the value: pytest, for one, cuts long
lines.

A value that is a word, or short, is masked only where no letter or digit stands beside it, else it would blank out half
a log. A value shorter than MIN_LENGTH, a small number, or a word that every log is made of is not masked at all:
whoever keeps one as a secret protects nothing, and loses the log.
"""

from __future__ import annotations

import base64
import functools
import re
from typing import FrozenSet, Iterable, Iterator, List, Tuple

from .escapes import Unescaper, undone_in_part
from .quick_dataclass import dataclass

MIN_LENGTH = 4
SHORT = 8  # characters: below that, a value is masked only as a whole word
WORD = 16  # characters: the same of one that has only digits, or only letters of one case
NUMBER = 6  # digits: shorter numbers are not masked
MIN_PART = 12  # bytes of a longer value that count as the value
MAX_PART = 32
_MIN_ENCODED = 8  # characters of base64 or hexadecimal digits that do not occur by chance
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
    """What to search for. `prefixes` are all beginnings of all heads, `firsts` their first bytes. Few texts have a zero
    byte: in the others, forms with one need no search."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form.text: form for value in values for form in _forms(value)}
        self.forms: List[SecretForm] = list(forms.values())
        self.forms_without_zeros = [form for form in self.forms if b"\0" not in form.head]
        heads = [form.head for form in self.forms]
        self.prefixes: FrozenSet[bytes] = frozenset(head[:end] for head in heads for end in range(1, len(head)))
        self.firsts: FrozenSet[int] = frozenset(head[0] for head in heads)
        self.longest_head = max(map(len, heads), default=0)

    @functools.cached_property
    def unescaper(self) -> Unescaper:
        """Made when a text is searched: its patterns take 15 ms, and most runs have no secrets."""
        return Unescaper(form.text for form in self.forms)


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
    data = os_bytes(value)
    yield from _plain_forms(value)
    if len(value.split()) > 1:  # the lines of a key are printed one by one
        lines = [line.strip() for line in value.splitlines()]
        yield from (form for line in lines[1:] and lines if is_maskable(line) for form in _plain_forms(line))
    yield from (next(_parts(text)) for text in _encoded(data) if len(text) >= _MIN_ENCODED)


def _plain_forms(value: str) -> Iterator[SecretForm]:
    for text in _plain(os_bytes(value)):
        if _is_word(value):
            yield SecretForm(text, text, is_word=True)
        else:
            yield from _parts(text)


def _is_word(value: str) -> bool:
    is_plain = value.isdigit() or (value.isalpha() and value in (value.lower(), value.upper(), value.capitalize()))
    return len(value) < SHORT or (len(value) < WORD and is_plain)


def _parts(text: bytes) -> Iterator[SecretForm]:
    """The form that begins with the first half of `text`, and its last half."""
    length = min(MAX_PART, max(MIN_PART, (len(text) + 1) // 2))
    yield SecretForm(text, text[:length])
    if len(text) > length:
        yield SecretForm(text[-length:], text[-length:])


def _plain(data: bytes) -> Iterator[bytes]:
    # A value that itself looks escaped loses that when the text is searched.
    yield from (text for text in undone_in_part(data) if len(text) >= MIN_LENGTH)
    if b" " in data:
        yield data.replace(b" ", b"+")  # a form that is sent by a browser
    if not data.isascii():  # `ascii` of Python escapes the code points below 256 as if they were bytes
        text = data.decode("utf-8", "surrogateescape")
        short = b"".join(os_bytes(char) if ord(char) > 255 else char.encode("latin-1") for char in text)
        yield from undone_in_part(short)


def _encoded(data: bytes) -> Iterator[bytes]:
    for offset in range(3):  # where the value begins in a group of three bytes
        start = (8 * offset + 5) // 6
        core = base64.b64encode(b"\0" * offset + data)[start : 8 * (offset + len(data)) // 6]
        yield core
        if re.search(rb"[+/]", core):
            yield core.translate(bytes.maketrans(b"+/", b"-_"))
    for offset in range(5):
        start = (8 * offset + 4) // 5
        yield base64.b32encode(b"\0" * offset + data)[start : 8 * (offset + len(data)) // 5]
    text = data.decode("utf-8", "replace")
    for encoding in ("utf-16-le", "utf-16-be"):
        yield text.encode(encoding).strip(b"\0")  # of ASCII, both are the same then
    yield data.hex().encode()
    yield data.hex().upper().encode()
