"""Xids: what the NVIDIA driver wrote of GPU faults into the kernel's log. Queries and pure parsers of their answers."""

from __future__ import annotations

import calendar
import re
import time
from typing import Dict, List, Optional, Sequence

from ..quick_dataclass import dataclass
from ..records import QueryAnswer

DMESG, JOURNAL = "dmesg", "journal"
# The ring buffer forgets, the journal keeps the whole boot; where only one may be read, that one is used.
QUERIES: Dict[str, Sequence[str]] = {
    DMESG: ["dmesg", "--kernel", "--level", "emerg,alert,crit,err,warn", "--time-format", "iso"],
    JOURNAL: ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-iso", "--grep", "NVRM: Xid"],
}
# Those that a program's own mistake causes; the GPU is well.
PROGRAM_ERRORS = {
    13: "graphics exception",
    31: "bad memory access",
    43: "program stopped",
    45: "program ended by force",
}
HARDWARE_ERRORS = {
    48: "double-bit ECC error",
    63: "row or page of its memory taken out",
    64: "broken memory could not be taken out",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "many corrected ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
    140: "unrecovered ECC error",
    149: "NVLink error",
}
_LINE = re.compile(
    r"(?:(?P<when>\d{4}-\d\d-\d\dT[\d:]{8})(?:[.,]\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?)?"
    r".*NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)"
)


@dataclass(frozen=True)
class Xid:
    """`when` as the log has it, without its zone; empty where it has none. `at` is the same in seconds since the epoch,
    None where the log does not say the zone."""

    number: int
    bus: str
    when: str
    at: Optional[float] = None


def parse_xids(text: str) -> List[Xid]:
    """Lines as `2026-11-20T10:11:12,131415+00:00 NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen …`."""
    matches = (_LINE.match(line) for line in text.splitlines())
    return [
        Xid(int(line["number"]), bus_id(line["bus"]), line["when"] or "", _seconds(line["when"], line["zone"]))
        for line in matches
        if line
    ]


def is_readable(ring: QueryAnswer, journal: QueryAnswer) -> bool:
    """Whether the kernel's log was read. journalctl --grep ends with 1 where nothing matched; where nothing may be read
    it also complains."""
    return ring.code == 0 or (journal.code in (0, 1) and not journal.err.strip())


def bus_id(text: str) -> str:
    """nvidia-smi writes 00000000:1B:00.0 where the kernel's log has 0000:1b:00."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([parts[0][-4:].zfill(4), *parts[1:]])


def _seconds(when: Optional[str], zone: Optional[str]) -> Optional[float]:
    if not when or not zone:
        return None
    try:
        seconds = calendar.timegm(time.strptime(when, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
    if zone == "Z":
        return float(seconds)
    offset = 3600 * int(zone[1:3]) + 60 * int(zone[-2:])
    return float(seconds - offset if zone[0] == "+" else seconds + offset)
