"""Masks secrets in a stream of bytes, in every form of `secret_forms`, also one that is split over two writes.

Held back is only what may be the beginning of a secret. It comes with the bytes that decide, or at the end: waiting a
while and then showing half of a secret would protect nothing. Lines that are complete are shown at once.
"""

from __future__ import annotations

import re
from typing import Iterable, Iterator, List, Tuple

from .secret_forms import SecretForm, SecretForms, os_bytes, secret_forms

MASK = b"***"
MAX_HELD = 1 << 16  # bytes; only a text made for it looks like the beginning of a secret for longer
_CONTEXT = 96  # bytes that are out already, since what stands before a word or a line break decides what it is
Span = Tuple[int, int]
# Not inside of a word: what ends an escape or a color is no letter of it.
_WORD_BEGINS = re.compile(
    rb"(?:\A|[^A-Za-z0-9_]|\\[nrtbfav]|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2}|\x1b\[[0-9;:?]*[A-Za-z])\Z"
)
_WORD_GOES_ON = re.compile(rb"[A-Za-z0-9_]")


class Masker:
    """Returns the chunks that it is fed with every secret replaced. With `keep_length` the mask is as long as what it
    hides: in a binary file every offset stays right. `count` says how many masks there are so far."""

    def __init__(self, values: Iterable[str], keep_length: bool = False) -> None:
        self._secrets = secret_forms(tuple(sorted(set(values))))
        self._keep_length = keep_length
        self._text = b""  # the context, and behind it what is held
        self._out = 0  # the length of the context
        self.count = 0

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that can be shown now."""
        if not self._secrets.forms:
            return chunk
        self._text += chunk
        return self._show(False)

    def flush(self) -> bytes:
        """What was held back, at the end of the stream."""
        return self._show(True) if self._secrets.forms else b""

    def _show(self, is_end: bool) -> bytes:
        spans, until = _find(self._secrets, self._text, is_end)
        if len(self._text) - until > MAX_HELD:
            until = len(self._text)
        until = max(until, self._out)
        shown, at = [], self._out
        for start, end in spans:
            if end <= at:
                continue
            if start >= until:
                break
            shown += [self._text[at:start], b"*" * (end - start) if self._keep_length else MASK]
            at = end
            self.count += 1
        shown.append(self._text[at:until])
        until = max(at, until)
        context = max(0, until - _CONTEXT)
        self._text, self._out = self._text[context:], until - context
        return b"".join(shown)


def mask(values: Iterable[str], data: bytes) -> bytes:
    """`data`, which is whole, with every secret replaced."""
    masker = Masker(values)
    return masker.feed(data) + masker.flush()


def mask_text(values: Iterable[str], text: str) -> str:
    try:
        return mask(values, os_bytes(text)).decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair, which JSON can hold
        data = text.encode("utf-8", "replace")
        shown = mask(values, data)
        return text if shown == data else shown.decode("utf-8", "replace")


def _find(secrets: SecretForms, text: bytes, is_end: bool) -> Tuple[List[Span], int]:
    """Where `text` is secret, in order, secrets that overlap being one; and where it ends for now: behind that may be
    the beginning of one more."""
    until = len(text) if is_end else _beginning(secrets, text)
    spans: List[Span] = []
    for form in secrets.forms:
        for start, end in _occurrences(text, form):
            spans.append((start, end))
            if not is_end and end == len(text) and (form.is_word or end - start < len(form.text)):
                until = min(until, start)
    merged = _merged(spans)
    return merged, next((start for start, end in merged if start < until < end), until)


def _occurrences(text: bytes, form: SecretForm) -> Iterator[Span]:
    at = text.find(form.head)
    while at >= 0:
        end = at + len(form.head)
        while end - at < len(form.text) and text[end : end + 1] == form.text[end - at : end - at + 1] != b"":
            end += 1
        if not form.is_word or (_WORD_BEGINS.search(text, max(0, at - 16), at) and not _WORD_GOES_ON.match(text, end)):
            yield at, end
        at = text.find(form.head, at + 1)


def _beginning(secrets: SecretForms, text: bytes) -> int:
    """Where the longest end of `text` begins that may be the beginning of a secret."""
    for at in range(max(0, len(text) - secrets.longest_head + 1), len(text)):
        if text[at] in secrets.firsts and text[at:] in secrets.prefixes:
            return at
    return len(text)


def _merged(spans: Iterable[Span]) -> List[Span]:
    merged: List[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
