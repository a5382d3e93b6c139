"""Lines of a log in pieces of bytes; each line is of bounded length, whatever the log contains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MAX_LINE_BYTES = 1 << 16
BOM = b"\xef\xbb\xbf"  # GitHub begins every log with one, and the file of every step


def bounded_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines in `chunks` without their `\\n`, at most `MAX_LINE_BYTES` of each.

    Of a longer line the beginning is kept. Of a progress bar, which writes one line again and again, the end is kept.
    """
    for block in bounded_blocks(chunks):  # whole blocks are split at once: a call for each line would take most time
        yield from block.removesuffix(b"\n").split(b"\n")


def bounded_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same lines in blocks, each about a chunk; all but the log's last line end with `\\n`."""
    start = rest = b""  # `start` is the beginning of an overlong line, `rest` the last bytes of any unfinished line
    for number, chunk in enumerate(chunks):
        text = rest + (chunk if number else chunk.removeprefix(BOM))
        end = text.rfind(b"\n") + 1
        block, rest = text[:end], text[end:]
        if block and start:
            first, _, others = block.partition(b"\n")
            block, start = b"%b\n%b" % (_shortened(start, first), others), b""
        if _has_overlong(block):
            lines = block.removesuffix(b"\n").split(b"\n")
            block = b"".join(
                b"%b\n" % (_shortened(line, line) if len(line) > MAX_LINE_BYTES else line) for line in lines
            )
        if block:
            yield block
        if len(rest) > MAX_LINE_BYTES:
            start, rest = start or rest[:MAX_LINE_BYTES], rest[-MAX_LINE_BYTES:]
    if rest:
        yield _shortened(start, rest) if start else rest


def _has_overlong(block: bytes) -> bool:
    at = 0
    while at < len(block):
        begun, at = at, block.rfind(b"\n", at, at + MAX_LINE_BYTES + 1) + 1
        if at <= begun:
            return True
    return False


def _shortened(start: bytes, end: bytes) -> bytes:
    tail = end[-MAX_LINE_BYTES:]
    return tail if b"\r" in tail.rstrip(b"\r") else start[:MAX_LINE_BYTES]
