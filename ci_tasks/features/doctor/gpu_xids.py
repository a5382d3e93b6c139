"""Xids: what the NVIDIA driver wrote of GPU faults into the kernel's log."""

from __future__ import annotations

from ci_tasks.agent.gpus.nvidia_smi import (
    DMESG,
    HARDWARE_ERRORS,
    JOURNAL,
    PROGRAM_ERRORS,
    XID_QUERIES,
    Xid,
    is_kernel_log_readable,
    parse_xids,
)
from ci_tasks.features.doctor.check_results import CheckResult, ok, unknown, warning
from ci_tasks.features.doctor.gpus import HEALTH, parse_health, visible_gpus
from ci_tasks.features.doctor.host_fact import HostFact, QueryAnswers

TOPIC = "Xid"
_MAX_RESULTS = 4  # lines; the log of a broken GPU has thousands


def facts() -> list[HostFact]:
    return [HostFact(XID_QUERIES, _read)]


def _read(answers: QueryAnswers) -> list[CheckResult]:
    if not visible_gpus(answers):
        return []
    ring, journal = answers[DMESG], answers[JOURNAL]
    problems = _problems({*parse_xids(ring.out), *parse_xids(journal.out)}, _indexes(answers[HEALTH].out))
    if problems or is_kernel_log_readable(ring, journal):
        return problems or [ok(TOPIC, "no fault of a GPU in the kernel's log")]
    step = "`sudo dmesg | grep Xid` shows them; members of the group adm may read the journal"
    return [unknown(TOPIC, f"the kernel's log cannot be read ({ring.last_line})", step)]


def _indexes(health: str) -> dict[str, int]:
    return {gpu.bus: gpu.index for gpu in parse_health(health)}


def _problems(xids: set[Xid], index: dict[str, int]) -> list[CheckResult]:
    """A line for each GPU and number. Warnings: the log still has them when a reset has long cured the GPU."""
    newest: dict[tuple[str, int], str] = {}
    for xid in xids:
        if xid.number not in PROGRAM_ERRORS:
            newest[xid.bus, xid.number] = max(xid.when, newest.get((xid.bus, xid.number), ""))
    order = sorted(newest, key=lambda key: newest[key], reverse=True)
    results = []
    for bus, number in order[:_MAX_RESULTS]:
        gpu = f"GPU {index[bus]} ({bus})" if bus in index else f"the GPU at {bus}"
        what = f"Xid {number}, {HARDWARE_ERRORS.get(number, 'see NVIDIA’s list of Xids')}"
        when = f", last at {newest[bus, number]}" if newest[bus, number] else ""
        step = "if it was not reset since: `sudo nvidia-smi --gpu-reset`, or reboot; what comes again is broken"
        results.append(warning(TOPIC, f"{gpu}: {what}{when}", step))
    if len(order) > _MAX_RESULTS:
        results.append(warning(TOPIC, f"and {len(order) - _MAX_RESULTS} more kinds", "`sudo dmesg | grep Xid`"))
    return results
