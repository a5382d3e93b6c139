"""A log of any size → the lines of it that the page shows, with their numbers, as a stream.

Of a log beyond its share the beginning, the end and the lines around the failing one are kept, and each gap says how
many lines were left out. Lines are counted at newlines alone, as triage does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from markupsafe import Markup, escape

from ci_tasks.logs.lines import segments, visible

LIMIT = 4_000_000  # bytes of one log: a browser shows as many at once
TOTAL = 16_000_000  # bytes of all logs of a page, so that GitHub takes it as an attachment (25 MB)
LONGEST = 4000  # bytes of a line
_HEAD_SHARE = 4  # a quarter of what is kept is the beginning: failures stand at the end
_NEAR = 200  # lines around the failing one that stay in any case


def shares(sizes: Iterable[int], each: int = LIMIT, total: int = TOTAL) -> list[int]:
    """How many bytes of each log may be kept: what small ones leave over goes to the large ones."""
    sizes = [min(size, each) for size in sizes]
    granted, left = [0] * len(sizes), total
    for done, at in enumerate(sorted(range(len(sizes)), key=lambda at: sizes[at])):
        granted[at] = min(sizes[at], left // (len(sizes) - done))
        left -= granted[at]
    return granted


def shown_lines(
    pieces: Iterable[bytes], size: int, keep: int, failing_line: int | None, failing_id: str
) -> Iterator[Markup]:
    """Lines of a log of `size` bytes, about `keep` bytes of them; the failing one has the id `failing_id`."""
    head = keep // _HEAD_SHARE
    tail = size - (keep - head)
    start = shown = 0
    for number, (end, line) in enumerate(_lines(pieces), 1):
        if start < head or end > tail or (failing_line and abs(number - failing_line) <= _NEAR):
            if number > shown + 1:
                yield Markup(
                    f"… {number - shown - 1:,} lines left out: `ci-tasks logs RUN --raw` prints the whole log …\n"
                )
            numbered = escape(f"{number:7d} {_text(line)}")
            if number == failing_line:
                numbered = Markup('<mark id="{}">{}</mark>').format(failing_id, numbered)
            yield numbered + "\n"
            shown = number
        start = end


def _lines(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each line, and where it ends in the log. The middle of a very long one is dropped, so that memory is bounded."""
    end, dropped, pending = 0, 0, b""
    for piece in pieces:
        *whole, pending = (pending + piece).split(b"\n")
        for line in whole:
            end += len(line) + dropped + 1
            dropped = 0
            yield end, line
        if len(pending) > 4 * LONGEST:
            dropped += len(pending) - 4 * LONGEST
            pending = pending[: 2 * LONGEST] + pending[-2 * LONGEST :]
    if pending:
        yield end + len(pending) + dropped, pending


def _text(line: bytes) -> str:
    """Without colours and cursor movements, and of a progress bar what came last, one after another."""
    return " ␍ ".join(
        visible(part, LONGEST) + (" … cut" if len(part) > LONGEST else "") for part in segments(line.rstrip(b"\r"))
    )
