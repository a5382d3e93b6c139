"""Masks secrets in a stream of bytes: the value, its lines, and both in URLs, JSON and XML, the value in base64 and in
hexadecimal digits, also where a form is split over two writes. And in an argv that is shown.

Held back is only what may be the beginning of a form, until the bytes come that decide it, or the end.

A value shorter than MIN_LENGTH, a small number, or a word of every log is not masked: as a secret it protects nothing,
and half a log would be blanked out.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Iterable, Iterator, Sequence

MASK = b"***"
MIN_LENGTH = 4
NUMBER = 6  # digits: shorter numbers are not masked
_MIN_ENCODED = 8  # characters of base64 that do not occur by chance
_ORDINARY = """
auto cpu cuda debug default development docker error errors fail failed failure false github gpu info latest linux local
localhost main master name none null offline online pass passed prod production python release root skipped slime
staging test tests true user verl warning
blocked cancelled collecting container ended exit killed lost planned pull resumed running stalled started starting step
timeout vacuous waiting"""
ORDINARY = frozenset(_ORDINARY.split())


class Masker:
    """Returns the chunks that it is fed with every secret replaced. With `keep_length` the mask is as long as what it
    hides: in a binary file every offset stays right."""

    def __init__(self, values: Iterable[str], keep_length: bool = False) -> None:
        self._forms, self._pattern = _forms(tuple(sorted(set(values))))
        self._keep_length, self._held = keep_length, b""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that can be shown now."""
        return self._show(chunk, False) if self._forms else chunk

    def flush(self) -> bytes:
        """What was held back, at the end of the stream."""
        return self._show(b"", True) if self._forms else b""

    def stream(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """All of a stream."""
        yield from map(self.feed, chunks)
        yield self.flush()

    def _show(self, chunk: bytes, is_end: bool) -> bytes:
        text = self._held + chunk
        until = len(text) if is_end else self._beginning(text)
        shown, at = [], 0
        has_any = any(form in text for form in self._forms)  # five times as fast as the pattern
        for match in self._pattern.finditer(text) if has_any else ():
            if match.start() >= until:
                break
            shown += [text[at : match.start()], b"*" * len(match[0]) if self._keep_length else MASK]
            at = match.end()
        shown.append(text[at:until])
        self._held = text[max(at, until) :]
        return b"".join(shown)

    def _beginning(self, text: bytes) -> int:
        """Where what may be the beginning of a form begins."""
        until = len(text)
        for form in self._forms:
            at = text.find(form[:1], max(0, len(text) - len(form) + 1), until)
            while at >= 0:
                if form.startswith(text[at:]):
                    until = at
                at = text.find(form[:1], at + 1, until)
        return until


def mask(values: Iterable[str], data: bytes) -> bytes:
    """`data`, which is whole, with every secret replaced."""
    return b"".join(Masker(values).stream([data]))


def mask_text(values: Iterable[str], text: str) -> str:
    # Half of a pair, which JSON and paths can hold, passes.
    return mask(values, text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def is_maskable(value: str) -> bool:
    """Whether a value is masked at all."""
    text = value.strip()
    is_number = text.isdigit() and len(text) < NUMBER
    return len(text) >= MIN_LENGTH and not is_number and text.lower() not in ORDINARY


@functools.lru_cache(64)
def _forms(values: tuple[str, ...]) -> tuple[tuple[bytes, ...], re.Pattern[bytes]]:
    """What to search for, the longest first, and as one pattern."""
    forms: set[bytes] = set()
    for value in filter(is_maskable, map(str.strip, values)):
        for text in filter(is_maskable, (value, *map(str.strip, value.splitlines()))):  # a key is printed in lines
            forms.update(_written(text))
        forms.update(_encoded(_bytes(value)))
    longest_first = tuple(sorted(forms, key=len, reverse=True))
    return longest_first, re.compile(b"|".join(map(re.escape, longest_first)))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _written(text: str) -> Iterator[bytes]:
    """`text` as it is, as Python's repr, in URLs, in JSON and in XML, also of the repr, as JUnit has an assertion."""
    import json  # what only knows the names of secrets needs none

    data, in_python = _bytes(text), repr(text)[1:-1]
    yield from (data, _bytes(in_python))
    for plain in (rb"[^A-Za-z0-9_.~-]", rb"[^A-Za-z0-9_.~/-]"):
        url = re.sub(plain, lambda char: b"%%%02X" % char[0][0], data)
        for escaped in (url, re.sub(rb"%..", lambda digits: digits[0].lower(), url)):
            yield from (escaped, escaped.replace(b"%20", b"+"))
    for only_ascii in (True, False):
        shown = _bytes(json.dumps(text, ensure_ascii=only_ascii)[1:-1])
        yield from (shown, shown.replace(b"/", b"\\/"))
    for shown_text in (text, in_python):
        in_xml = shown_text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        for double in ('"', "&quot;"):
            for single in ("'", "&#39;", "&#x27;", "&apos;"):
                yield _bytes(in_xml.replace('"', double).replace("'", single))


def _encoded(data: bytes) -> Iterator[bytes]:
    """`data` in base64, also for URLs, and in hexadecimal digits."""
    for offset in range(3):  # where the value begins in a group of three bytes
        start = (8 * offset + 5) // 6
        core = base64.b64encode(b"\0" * offset + data)[start : 8 * (offset + len(data)) // 6]
        if len(core) >= _MIN_ENCODED:
            yield from (core, core.translate(bytes.maketrans(b"+/", b"-_")))
    for digits in (data.hex(), data.hex(":")):
        yield from (digits.encode(), digits.upper().encode())


# Compiled at their first use: few commands show an argv.
_SECRET_NAME = r"(?i)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|KEY)$"
_ASSIGNMENT = r"(?s)(?P<head>(?:-[A-Za-z]*?e=?|--[a-z-]+=)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)=)(?P<value>.+)"
MASKED = "***"


def is_secret_name(name: str) -> bool:
    """Whether a variable's value is a secret, by its name."""
    return re.search(_SECRET_NAME, name) is not None


def masked(argv: Sequence[str]) -> list[str]:
    """The words with secrets hidden, fit to be shown: the value of `-e HF_TOKEN=…`, a password of `docker login`."""
    shown: list[str] = []
    for at, word in enumerate(argv):
        if at and "login" in argv[:at] and argv[at - 1] in ("-p", "--password"):
            word = MASKED
        elif "login" in argv[:at] and word.startswith("--password="):
            word = "--password=" + MASKED
        assignment = re.match(_ASSIGNMENT, word)
        shown.append(assignment["head"] + MASKED if assignment and is_secret_name(assignment["name"]) else word)
    return shown
