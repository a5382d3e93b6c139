"""Xids: what the NVIDIA driver wrote of GPU faults into the kernel's log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ci_tasks.features.doctor.check_results import CheckResult, ok, unknown, warning
from ci_tasks.features.doctor.gpus import HEALTH, bus_id, parse_health, visible_gpus
from ci_tasks.features.doctor.host_fact import HostFact, QueryAnswers

TOPIC = "Xid"
DMESG, JOURNAL = "dmesg", "journal"
QUERIES: dict[str, Sequence[str]] = {
    DMESG: ["dmesg", "--kernel", "--level", "emerg,alert,crit,err,warn", "--time-format", "iso"],
    # The ring buffer forgets, the journal keeps the whole boot; where only one may be read, that one is used.
    JOURNAL: ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-iso", "--grep", "NVRM: Xid"],
}
# Those that a program's own mistake causes; the GPU is well.
_PROGRAM_ERRORS = {
    13: "graphics exception",
    31: "bad memory access",
    43: "program stopped",
    45: "program ended by force",
}
_HARDWARE_ERRORS = {
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
_MAX_RESULTS = 4  # lines; the log of a broken GPU has thousands


@dataclass(frozen=True)
class Xid:
    """`when` as the log has it, without its zone; empty where it has none."""

    number: int
    bus: str
    when: str


def facts() -> list[HostFact]:
    return [HostFact(QUERIES, _read)]


def parse_xids(text: str) -> list[Xid]:
    """Lines as `2026-11-20T10:11:12,131415+00:00 NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen …`."""
    matches = (_LINE.match(line) for line in text.splitlines())
    return [Xid(int(line["number"]), bus_id(line["bus"]), line["when"] or "") for line in matches if line]


def _read(answers: QueryAnswers) -> list[CheckResult]:
    if not visible_gpus(answers):
        return []
    ring, journal = answers[DMESG], answers[JOURNAL]
    problems = _problems({*parse_xids(ring.out), *parse_xids(journal.out)}, _indexes(answers[HEALTH].out))
    # journalctl --grep ends with 1 where nothing matched; where nothing may be read it also complains.
    if problems or ring.code == 0 or (journal.code in (0, 1) and not journal.err.strip()):
        return problems or [ok(TOPIC, "no fault of a GPU in the kernel's log")]
    step = "`sudo dmesg | grep Xid` shows them; members of the group adm may read the journal"
    return [unknown(TOPIC, f"the kernel's log cannot be read ({ring.last_line})", step)]


def _indexes(health: str) -> dict[str, int]:
    return {gpu.bus: gpu.index for gpu in parse_health(health)}


def _problems(xids: set[Xid], index: dict[str, int]) -> list[CheckResult]:
    """A line for each GPU and number. Warnings: the log still has them when a reset has long cured the GPU."""
    newest: dict[tuple[str, int], str] = {}
    for xid in xids:
        if xid.number not in _PROGRAM_ERRORS:
            newest[xid.bus, xid.number] = max(xid.when, newest.get((xid.bus, xid.number), ""))
    order = sorted(newest, key=lambda key: newest[key], reverse=True)
    results = []
    for bus, number in order[:_MAX_RESULTS]:
        gpu = f"GPU {index[bus]} ({bus})" if bus in index else f"the GPU at {bus}"
        what = f"Xid {number}, {_HARDWARE_ERRORS.get(number, 'see NVIDIA’s list of Xids')}"
        when = f", last at {newest[bus, number]}" if newest[bus, number] else ""
        step = "if it was not reset since: `sudo nvidia-smi --gpu-reset`, or reboot; what comes again is broken"
        results.append(warning(TOPIC, f"{gpu}: {what}{when}", step))
    if len(order) > _MAX_RESULTS:
        results.append(warning(TOPIC, f"and {len(order) - _MAX_RESULTS} more kinds", "`sudo dmesg | grep Xid`"))
    return results
