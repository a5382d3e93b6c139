"""Taking secrets out of a stream of bytes, also where one is split over two reads."""

from __future__ import annotations

import re
from typing import Iterable, List

MASK = b"***"
# GitHub masks any value; one of a few characters would blank out half a log and protects nothing.
SHORTEST = 4


class Masker:
    """Feed it chunks; it gives them back with every secret replaced, holding back what may be a secret's beginning."""

    def __init__(self, values: Iterable[str]) -> None:
        wanted = {line for value in values for line in (value, *value.splitlines())}
        secrets = [os_bytes(value) for value in wanted if len(value) >= SHORTEST]
        self._secrets: List[bytes] = sorted(secrets, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(secret) for secret in self._secrets)) if secrets else None
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that can be shown now."""
        if self._pattern is None:
            return chunk
        text = self._held + chunk
        keep = self._beginning(text)
        # A whole secret may end in the beginning of another: what is held back is decided before anything is replaced.
        whole = max((found.end() for found in self._pattern.finditer(text)), default=0)
        cut = max(len(text) - keep, whole)
        self._held = text[cut:]
        return self._pattern.sub(MASK, text[:cut])

    def flush(self) -> bytes:
        """What was held back, at the end of the stream."""
        rest, self._held = self._held, b""
        return self._pattern.sub(MASK, rest) if self._pattern else rest

    def _beginning(self, text: bytes) -> int:
        """The length of the longest end of `text` that begins a secret."""
        longest = min(len(text), len(self._secrets[0]) - 1)
        for length in range(longest, 0, -1):
            if any(secret.startswith(text[-length:]) for secret in self._secrets):
                return length
        return 0


def os_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
