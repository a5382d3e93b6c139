"""A host's GPUs: how many against hosts.yaml, what is broken in them, and who uses them or holds their locks."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from ci_tasks.agent import nvidia_smi
from ci_tasks.agent.nvidia_smi import bus_id
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.errors import counted
from ci_tasks.features.doctor.check_results import Answers, Check, CheckResult, fault, ok, unknown, warning
from ci_tasks.hosts.queries import LOCKS_QUERY, LOCKS_QUERY_NAME, lock_holders, parse_facts
from ci_tasks.results.gpu_samples import HARDWARE_ERRORS, PROGRAM_ERRORS

# What nvidia-smi says when it finds nothing → what to do
_REMEDIES = (
    ("Driver/library version mismatch", "the driver was updated under the running kernel: reboot"),
    ("couldn't communicate|Driver Not Loaded", "`sudo modprobe nvidia`; after a kernel update, see `dkms status`"),
    ("No devices (were )?found", "`lspci | grep -i nvidia` shows whether there are any"),
    ("GPU is lost|Unable to determine", "a GPU has fallen off the bus: reboot; if it happens again, have it checked"),
    ("no answer", "a GPU or the driver is stuck: see the kernel log, then reboot"),
)
_HEALTH = "index,pci.bus_id,mig.mode.current,ecc.errors.uncorrected.volatile.total,retired_pages.pending"
_QUERY_HEALTH = ["nvidia-smi", "--query-gpu=" + _HEALTH, nvidia_smi.CSV_OPTION]
_REMAPPED = "gpu_bus_id,remapped_rows.pending,remapped_rows.failure"
_QUERY_REMAPPED = ["nvidia-smi", "--query-remapped-rows=" + _REMAPPED, nvidia_smi.CSV_OPTION]
_MAX_XIDS = 4  # lines; the log of a broken GPU has thousands


def gpus(host: HostSpec) -> Check:
    if host.simulate or host.gpus == 0:
        yield {}
        return [ok("GPUs", f"{host.gpus} simulated GPUs" if host.simulate else "none, as hosts.yaml says")]
    # Health and rows are asked apart: one field that a driver does not know makes nvidia-smi refuse a whole query.
    # Of processes not `args`: a command line may have a secret in it.
    answers = yield {
        "gpus": nvidia_smi.QUERY_GPUS, "gpu health": _QUERY_HEALTH,
        "remapped rows": _QUERY_REMAPPED, "gpu processes": nvidia_smi.QUERY_APPS,
        "processes": ["ps", "-eo", "pid=,user:32=,comm="], LOCKS_QUERY_NAME: LOCKS_QUERY, **nvidia_smi.XID_QUERIES,
    }  # fmt: skip
    facts = parse_facts(replace(host, gpus=None), answers, simulates=True)  # as `plan` counts them
    if not facts.gpus:
        return [_absent(host, answers["gpus"], facts.gpu_problem)]
    found = nvidia_smi.parse_gpus(answers["gpus"].out)
    kinds = Counter(gpu.name + (f" ({gpu.total / 1024:.0f} GiB)" if gpu.total else "") for gpu in found)
    text = f"{', '.join(f'{count} x {name}' for name, count in kinds.items())}, driver {found[0].driver}"
    present = ok("GPUs", text)
    if len(found) < (host.gpus or 0):
        step = "a missing GPU fell off the bus or was not passed in: see the kernel log, reboot; or correct `gpus`"
        present = fault("GPUs", f"{text}; hosts.yaml says {host.gpus}", step)
    return [present, *_health(answers), *_xids(answers), *_usage(answers)]


def _absent(host: HostSpec, answer: QueryAnswer, problem: str) -> CheckResult:
    if answer.is_missing and not host.gpus:
        step = "a GPU host needs NVIDIA's driver; set `gpus: 0` in hosts.yaml if the host has no GPU"
        return warning("GPUs", f"{problem}: rows with GPUs are blocked, others run", step)
    lines = f"{answer.out}\n{answer.err}".splitlines()
    matches = ((line.strip(), step) for pattern, step in _REMEDIES for line in lines if re.search(pattern, line))
    otherwise = "install NVIDIA's driver" if answer.is_missing else "run nvidia-smi there and read its output"
    text, step = next(matches, (problem, otherwise))
    return fault("GPUs", f"hosts.yaml says {host.gpus} GPUs; {text}" if host.gpus else text, step)


def _health(answers: Answers) -> list[CheckResult]:
    """What nvidia-smi counts as broken."""
    topic, answer = "GPU health", answers["gpu health"]
    if answer.code != 0:
        return [unknown(topic, answer.last_line)]
    remapped = {bus_id(bus): states for bus, *states in _cells(answers["remapped rows"].out, 3)}
    results = []
    for index, bus, mig, errors, page in _cells(answer.out, 5):
        name = f"GPU {index} ({bus_id(bus)})"
        row, failure = remapped.get(bus_id(bus), ("0", "0"))
        reset = f"while no process uses it: `sudo nvidia-smi --gpu-reset -i {index}`, or reboot"
        if failure not in ("0", "No"):
            results.append(fault(topic, f"{name}: a broken row of its memory could not be remapped", "replace it"))
        if page == "Yes" or row not in ("0", "No"):
            results.append(fault(topic, f"{name}: only a reset retires the broken memory", reset))
        if errors.isdigit() and int(errors) > 0:  # counted until the driver is loaded again: it may be well by now
            text = f"{counted(int(errors), 'uncorrected ECC error')} since the driver was loaded"
            results.append(warning(topic, f"{name}: {text}", reset))
        if mig == "Enabled":
            step = f"while no process uses it: `sudo nvidia-smi -i {index} -mig 0`"
            results.append(fault(topic, f"{name}: split by MIG, but rows need whole GPUs", step))
    return results or [ok(topic, "no uncorrected ECC error is counted, no page or row pending")]


def _xids(answers: Answers) -> list[CheckResult]:
    """GPU faults in the kernel's log: a line for each GPU and number. They are warnings, since the log still has them
    when a reset has long cured the GPU."""
    ring, journal = answers[nvidia_smi.DMESG], answers[nvidia_smi.JOURNAL]
    found = nvidia_smi.parse_xids(f"{ring.out}\n{journal.out}")
    newest: dict[tuple[str, int], str] = {}
    for xid in sorted(found, key=lambda xid: xid.when):
        if xid.number not in PROGRAM_ERRORS:
            newest[xid.bus, xid.number] = xid.when
    index = {bus_id(bus): f"GPU {index}" for index, bus, *_ in _cells(answers["gpu health"].out, 5)}
    results = []
    for (bus, number), when in sorted(newest.items(), key=lambda item: item[1], reverse=True)[:_MAX_XIDS]:
        what = f"Xid {number}, {HARDWARE_ERRORS.get(number, 'see NVIDIA’s list of Xids')}"
        step = "if it was not reset since: `sudo nvidia-smi --gpu-reset`, or reboot; if it returns, the GPU is broken"
        last = f", last at {when}" if when else ""
        results.append(warning("Xid", f"{index.get(bus, 'a GPU')} ({bus}): {what}{last}", step))
    if results or nvidia_smi.is_kernel_log_readable(ring, journal):
        return results or [ok("Xid", "no fault of a GPU in the kernel's log")]
    step = "`sudo dmesg | grep Xid` shows them; members of the group adm may read the journal"
    return [unknown("Xid", f"the kernel's log cannot be read ({ring.last_line})", step)]


def _usage(answers: Answers) -> list[CheckResult]:
    """Who has memory on a GPU, and who holds its lock."""
    apps, locked = nvidia_smi.parse_apps(answers["gpu processes"].out), lock_holders(answers)
    in_use = nvidia_smi.gpus_in_use(nvidia_smi.parse_gpus(answers["gpus"].out), apps)
    rows = [row for row in (line.split(None, 2) for line in answers["processes"].out.splitlines()) if len(row) == 3]
    processes = {pid: f"pid {pid} ({name}) of {user}" for pid, user, name in rows}
    results = []
    for gpu in sorted({*in_use, *locked}):
        text = f"GPU {gpu}: {in_use.get(gpu, 'no memory in use')}"
        holders = [processes.get(str(pid), "a process that is not visible here") for pid in locked.get(gpu, ())]
        if holders:
            results.append(ok("GPU use", f"{text}, its lock held by {' and '.join(holders)}"))
        else:
            users = [processes[pid] for pid in re.findall(r"pid (\d+)", text) if pid in processes]
            step = f"rows wait for it; ask its user, or end it{f': {users[0]}' if users else ''}"
            results.append(warning("GPU use", f"{text}, without a lock", step))
    return results or [ok("GPU use", "no process uses a GPU or holds a lock")]


def _cells(text: str, count: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == count]
