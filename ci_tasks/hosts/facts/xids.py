"""Xids: what the NVIDIA driver wrote of GPU faults into the kernel's log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ci_tasks.hosts.facts.fact import Answers, Fact
from ci_tasks.hosts.facts.gpus import HEALTH, bus_id, found, parse_health
from ci_tasks.report.doctor import OK, UNKNOWN, WARNING, Finding

TOPIC = "Xid"
DMESG, JOURNAL = "dmesg", "journal"
QUESTIONS: dict[str, Sequence[str]] = {
    DMESG: ["dmesg", "--kernel", "--level", "emerg,alert,crit,err,warn", "--time-format", "iso"],
    # The ring buffer forgets, the journal keeps the whole boot; where only one may be read, that one is used.
    JOURNAL: ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-iso", "--grep", "NVRM: Xid"],
}
# Those that a program's own mistake causes; the GPU is well.
_OF_PROGRAMS = {13: "graphics exception", 31: "bad memory access", 43: "program stopped", 45: "program ended by force"}
_OF_HARDWARE = {
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
    r"(?P<when>\d{4}-\d\d-\d\dT[\d:]+)?.*NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)"
)
_KEPT = 4  # lines; the log of a broken GPU has thousands


@dataclass(frozen=True)
class Xid:
    """`when` as the log has it, without its zone; empty where it has none."""

    number: int
    bus: str
    when: str


def facts() -> list[Fact]:
    return [Fact(QUESTIONS, _read)]


def parse(text: str) -> list[Xid]:
    """Lines as `2026-11-20T10:11:12,131415+00:00 NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen …`."""
    seen = (_LINE.match(line) for line in text.splitlines())
    return [Xid(int(line["number"]), bus_id(line["bus"]), line["when"] or "") for line in seen if line]


def _read(answers: Answers) -> list[Finding]:
    if not found(answers):
        return []
    ring, journal = answers[DMESG], answers[JOURNAL]
    troubles = _troubles({*parse(ring.out), *parse(journal.out)}, _indexes(answers[HEALTH].out))
    # journalctl --grep ends with 1 where nothing matched; where nothing may be read it also complains.
    if troubles or ring.code == 0 or (journal.code in (0, 1) and not journal.err.strip()):
        return troubles or [Finding(TOPIC, OK, "no fault of a GPU in the kernel's log")]
    step = "`sudo dmesg | grep Xid` shows them; members of the group adm may read the journal"
    return [Finding(TOPIC, UNKNOWN, f"the kernel's log cannot be read ({ring.said})", step)]


def _indexes(health: str) -> dict[str, int]:
    return {gpu.bus: gpu.index for gpu in parse_health(health)}


def _troubles(seen: set[Xid], index: dict[str, int]) -> list[Finding]:
    """A line for each GPU and number. Warnings: the log still has them when a reset has long cured the GPU."""
    newest: dict[tuple[str, int], str] = {}
    for xid in seen:
        if xid.number not in _OF_PROGRAMS:
            newest[xid.bus, xid.number] = max(xid.when, newest.get((xid.bus, xid.number), ""))
    order = sorted(newest, key=lambda key: newest[key], reverse=True)
    said = []
    for bus, number in order[:_KEPT]:
        gpu = f"GPU {index[bus]} ({bus})" if bus in index else f"the GPU at {bus}"
        what = f"Xid {number}, {_OF_HARDWARE.get(number, 'see NVIDIA’s list of Xids')}"
        when = f", last at {newest[bus, number]}" if newest[bus, number] else ""
        step = "if it was not reset since: `sudo nvidia-smi --gpu-reset`, or reboot; what comes again is broken"
        said.append(Finding(TOPIC, WARNING, f"{gpu}: {what}{when}", step))
    if len(order) > _KEPT:
        said.append(Finding(TOPIC, WARNING, f"and {len(order) - _KEPT} more kinds", "`sudo dmesg | grep Xid`"))
    return said
