"""Xids: what the NVIDIA driver wrote of GPU faults into the kernel's log. Queries and pure parsers of their answers."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Dict, List, NamedTuple, Optional, Sequence

from ..records import QueryAnswer

DMESG, JOURNAL = "dmesg", "journal"
# The ring buffer forgets, the journal keeps the whole boot; a user may be allowed to read only one of them.
QUERIES: Dict[str, Sequence[str]] = {
    DMESG: ["dmesg", "--kernel", "--level", "emerg,alert,crit,err,warn", "--time-format", "iso"],
    JOURNAL: ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-iso", "--grep", "NVRM: Xid"],
}
# A program's own mistake causes these; the GPU is well.
PROGRAM_ERRORS = {
    13: "graphics exception", 31: "bad memory access", 43: "program stopped", 45: "program ended by force",
}  # fmt: skip
HARDWARE_ERRORS = {
    48: "double-bit ECC error", 63: "row or page of its memory taken out", 64: "broken memory could not be taken out",
    74: "NVLink error", 79: "fallen off the bus", 92: "many corrected ECC errors", 94: "contained ECC error",
    95: "uncontained ECC error", 119: "its firmware (GSP) does not answer", 120: "its firmware (GSP) failed",
    140: "unrecovered ECC error", 149: "NVLink error",
}  # fmt: skip
_LINE = re.compile(
    r"(?:(?P<when>\d{4}-\d\d-\d\dT[\d:]{8})(?:[.,]\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?)?"
    r".*NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)"
)


class Xid(NamedTuple):
    """`when` is the log's time, without its zone; `at` the same in seconds since the epoch. A log may have neither."""

    number: int
    bus: str
    when: str
    at: Optional[float] = None


def parse_xids(text: str) -> List[Xid]:
    """Lines as `2026-11-20T10:11:12,131415+00:00 NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen …`."""
    lines = filter(None, map(_LINE.match, text.splitlines()))
    return [
        Xid(int(line["number"]), bus_id(line["bus"]), line["when"] or "", _seconds(line["when"], line["zone"]))
        for line in lines
    ]


def is_readable(ring: QueryAnswer, journal: QueryAnswer) -> bool:
    """Whether the kernel's log was read. `journalctl --grep` exits with 1 if nothing matched; a user who may read
    nothing gets a complaint too."""
    return ring.code == 0 or (journal.code in (0, 1) and not journal.err.strip())


def bus_id(text: str) -> str:
    """nvidia-smi writes 00000000:1B:00.0 for the kernel log's 0000:1b:00."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([parts[0][-4:].zfill(4), *parts[1:]])


def _seconds(when: Optional[str], zone: Optional[str]) -> Optional[float]:
    try:
        return datetime.strptime("%s%s" % (when, zone), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None
