"""Lines of a log in pieces of bytes; each line is of bounded length, whatever the log contains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MAX_LINE_BYTES = 1 << 16
BOM = b"\xef\xbb\xbf"  # GitHub begins every log with one, and the file of every step


def bounded_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines in `chunks` without their `\\n`, at most `MAX_LINE_BYTES` of each.

    Of a longer line the beginning is kept. Of a progress bar, which writes one line again and again, the end is kept.
    """
    # Whole chunks are split at once: a call for each line would take most of the time.
    start = rest = b""  # `start` is the beginning of an overlong line, `rest` the last bytes of any unfinished line
    for number, chunk in enumerate(chunks):
        lines = (rest + (chunk if number else chunk.removeprefix(BOM))).split(b"\n")
        rest = lines.pop()
        if lines and start:
            lines[0], start = _shortened(start, lines[0]), b""
        if lines and max(map(len, lines)) > MAX_LINE_BYTES:
            lines = [_shortened(line, line) if len(line) > MAX_LINE_BYTES else line for line in lines]
        yield from lines
        if len(rest) > MAX_LINE_BYTES:
            start, rest = start or rest[:MAX_LINE_BYTES], rest[-MAX_LINE_BYTES:]
    if rest:
        yield _shortened(start, rest) if start else rest


def _shortened(start: bytes, end: bytes) -> bytes:
    tail = end[-MAX_LINE_BYTES:]
    return tail if b"\r" in tail.rstrip(b"\r") else start[:MAX_LINE_BYTES]
