"""A log of any size → compressed blocks of whole lines, as a stream: what the page's viewer unpacks one by one.

Line numbers stay those of the log. Lines are counted at newlines alone, as triage does. Of a log beyond `limit` the
beginning, the end and the neighbourhood of the failing line are kept, and each gap says what was left out.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator

from ci_tasks.agent.quick_dataclass import dataclass

LIMIT = 200_000_000  # bytes of one log
TOTAL = 400_000_000  # bytes of all logs of a page
BLOCK = 1 << 18
LONGEST = 2 << 20  # bytes of a line; one without an end must not become one block
_HEAD_SHARE = 4  # a quarter of what is kept is the beginning: failures stand at the end
_NEAR = 1000  # lines around the failing one that stay in any case
_SEGMENTS = 20  # of a progress bar, as many as triage looks at
_LEVEL = 6  # zlib's own choice: 9 takes twice the time for 2 % of size
_ANSI = re.compile(rb"\x1b\[[0-9;:?]{0,40}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b\n]{0,500}(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")


@dataclass(frozen=True)
class Block:
    """Whole lines: the number of the first, how many, their text. A gap is one line that says so, and stands for all
    lines from `first` on up to the next block's."""

    first: int
    lines: int
    text: bytes


def shares(sizes: Iterable[int], each: int = LIMIT, total: int = TOTAL) -> list[int]:
    """How many bytes of each log may be kept: what small ones leave over goes to the large ones."""
    sizes = [min(size, each) for size in sizes]
    granted, left = [0] * len(sizes), total
    for done, at in enumerate(sorted(range(len(sizes)), key=lambda at: sizes[at])):
        granted[at] = min(sizes[at], left // (len(sizes) - done))
        left -= granted[at]
    return granted


def script(log: int, pieces: Iterable[bytes], size: int, keep: int, failing_line: int | None) -> Iterator[str]:
    """The data elements of a log of `size` bytes, number `log` of the page; at most about `keep` bytes of it."""
    for block in kept(_blocks(_bounded(pieces)), size, keep, failing_line):
        packed = base64.b64encode(zlib.compress(_clean(block.text), _LEVEL)).decode("ascii")
        yield (
            f'<script type="application/x-ci-tasks-log" data-log="{log}" data-first="{block.first}"'
            f' data-lines="{block.lines}">{packed}</script>\n'
        )


def kept(blocks: Iterable[Block], size: int, keep: int, failing_line: int | None) -> Iterator[Block]:
    """`blocks`, all of them, or without those in the middle."""
    if size <= keep:
        yield from blocks
        return
    head = keep // _HEAD_SHARE
    tail = size - (keep - head)
    at, gap_first, gap_lines, gap_bytes = 0, 0, 0, 0
    for block in blocks:
        begin, at = at, at + len(block.text) + 1
        if begin < head or at > tail or _around(block, failing_line):
            if gap_lines:
                yield _gap(gap_first, gap_lines, gap_bytes)
                gap_lines = gap_bytes = 0
            yield block
            continue
        gap_first = gap_first if gap_lines else block.first
        gap_lines += block.lines
        gap_bytes += len(block.text)
    if gap_lines:
        yield _gap(gap_first, gap_lines, gap_bytes)


def _around(block: Block, failing_line: int | None) -> bool:
    return failing_line is not None and block.first - _NEAR <= failing_line < block.first + block.lines + _NEAR


def _gap(first: int, lines: int, size: int) -> Block:
    text = f"… {lines:,} lines ({size / 1e6:.1f} MB) are left out here: the log is too large for one page …"
    return Block(first, 1, text.encode())


def _blocks(pieces: Iterable[bytes]) -> Iterator[Block]:
    """Whole lines, without the last newline, in blocks of about BLOCK bytes."""
    pending: list[bytes] = []
    size, number = 0, 1
    for piece in pieces:
        pending.append(piece)
        size += len(piece)
        if size < BLOCK or b"\n" not in piece:
            continue
        text, _, rest = b"".join(pending).rpartition(b"\n")
        lines = text.count(b"\n") + 1
        yield Block(number, lines, text)
        number += lines
        pending, size = [rest], len(rest)
    last = b"".join(pending)
    if last:
        text = last.removesuffix(b"\n")
        yield Block(number, text.count(b"\n") + 1, text)


def _bounded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The log without the middle of a line that is longer than LONGEST."""
    length = dropped = 0  # of the line that is being read
    for piece in pieces:
        end = piece.find(b"\n")
        if end < 0 and length > LONGEST:
            dropped += len(piece)
            continue
        if end < 0:
            length += len(piece)
            yield piece
            continue
        yield _left_out(dropped) + piece
        length, dropped = len(piece) - piece.rfind(b"\n") - 1, 0
    if dropped:
        yield _left_out(dropped)


def _left_out(size: int) -> bytes:
    return f" … {size:,} bytes of this line are left out … ".encode() if size else b""


def _clean(text: bytes) -> bytes:
    """Without colours and cursor movements, and of a progress bar what came last, one after another."""
    if b"\x1b" in text:
        text = _ANSI.sub(b"", text)
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
        if b"\r" in text:
            text = b"\n".join(_segments(line) if b"\r" in line else line for line in text.split(b"\n"))
    return text


def _segments(line: bytes) -> bytes:
    segments = [segment for segment in line.split(b"\r") if segment.strip()]
    return " ␍ ".encode().join(segments[-_SEGMENTS:])
