"""Masks secrets in a stream of bytes, also where one is split over two reads or overlaps another."""

from __future__ import annotations

from typing import Iterable, Iterator, List, Tuple

MASK = b"***"
# GitHub masks any value; one of a few characters would blank out half a log and protects nothing.
MIN_LENGTH = 4


class Masker:
    """Returns the chunks that it is fed with every secret replaced, holding back what may be the beginning of one."""

    def __init__(self, values: Iterable[str]) -> None:
        lines = {line for value in values for line in (value, *value.splitlines())}
        self._secrets = [os_bytes(value) for value in lines if len(value) >= MIN_LENGTH]
        self._longest = max(map(len, self._secrets), default=0)
        self._firsts = {secret[0] for secret in self._secrets}
        self._held = b""
        self._covered = 0  # so many of the held bytes belong to a secret whose mask is out already

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that can be shown now."""
        if not self._secrets:
            return chunk
        text = self._held + chunk
        return self._show(text, self._beginning(text))

    def flush(self) -> bytes:
        """What was held back, at the end of the stream."""
        return self._show(self._held, len(self._held))

    def _show(self, text: bytes, until: int) -> bytes:
        """`text` up to `until`, masked; the rest is held."""
        shown, at, covered = [], 0, max(0, self._covered - until)
        for start, end in self._spans(text):
            if start >= until:
                break
            shown.append(text[at:start])
            if start or not self._covered:
                shown.append(MASK)
            at, covered = min(end, until), max(0, end - until)
        shown.append(text[at:until])
        self._held, self._covered = text[until:], covered
        return b"".join(shown)

    def _spans(self, text: bytes) -> Iterator[Tuple[int, int]]:
        """Where `text` is secret, in order; secrets that overlap are one."""
        spans = sorted(span for secret in self._secrets for span in _occurrences(text, secret))
        start, end = 0, self._covered
        for first, last in spans:
            if first < end:
                end = max(end, last)
                continue
            if end:
                yield start, end
            start, end = first, last
        if end:
            yield start, end

    def _beginning(self, text: bytes) -> int:
        """Where the longest end of `text` begins that may be the beginning of a secret."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[at] in self._firsts and any(secret.startswith(text[at:]) for secret in self._secrets):
                return at
        return len(text)


def _occurrences(text: bytes, secret: bytes) -> List[Tuple[int, int]]:
    spans, at = [], text.find(secret)
    while at >= 0:
        spans.append((at, at + len(secret)))
        at = text.find(secret, at + 1)
    return spans


def os_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
