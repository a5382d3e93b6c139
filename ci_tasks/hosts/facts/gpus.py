"""A host's GPUs: how many against hosts.yaml, driver, and what nvidia-smi counts as broken in them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ci_tasks.hosts.ask import Answer
from ci_tasks.hosts.facts.fact import Answers, Fact
from ci_tasks.model import HostSpec
from ci_tasks.report.doctor import FAULT, OK, UNKNOWN, WARNING, Finding
from ci_tasks.runner.gpu import gpus
from ci_tasks.runner.gpu.gpus import Gpu

TOPIC = "GPUs"
GPUS, HEALTH, REMAPPED = "gpus", "gpu health", "remapped rows"
QUESTIONS: dict[str, Sequence[str]] = {
    GPUS: gpus.QUERY_GPUS,
    # Asked apart: one field that a driver does not know makes nvidia-smi refuse the whole question.
    HEALTH: [
        "nvidia-smi",
        "--query-gpu=index,pci.bus_id,mig.mode.current,ecc.errors.uncorrected.volatile.total,retired_pages.pending",
        "--format=csv,noheader,nounits",
    ],
    REMAPPED: [
        "nvidia-smi",
        "--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure",
        "--format=csv,noheader",
    ],
}
# What nvidia-smi says when it finds nothing → what to do
_CURES = (
    (
        r"Driver/library version mismatch",
        "the driver was updated under the running kernel: reboot (or, with the GPUs idle, unload and load its modules)",
    ),
    (
        r"couldn't communicate with the NVIDIA driver|Driver Not Loaded",
        "`sudo modprobe nvidia`; after a kernel update the driver has to be built for it (`dkms status`)",
    ),
    (
        r"No devices were found|No devices found",
        "`lspci | grep -i nvidia` and the kernel log show whether they are there; a container has to be given them",
    ),
    (
        r"GPU is lost|Unable to determine the device handle",
        "a GPU has fallen off the bus: reboot; if it comes again, have its seat, power and the GPU itself checked",
    ),
    (
        r"Failed to initialize NVML: Unknown Error",
        "inside a container: the host's systemd took its devices away, start it anew; else see the kernel log",
    ),
    (r"Insufficient Permissions", "`ls -l /dev/nvidia*` shows who may use them; have yourself added to that group"),
)


@dataclass(frozen=True)
class Health:
    """`uncorrected` counts since the driver was loaded; None where the GPU does not count (no ECC)."""

    index: int
    bus: str
    divided: bool
    uncorrected: int | None
    pages_pending: bool


def facts(host: HostSpec) -> list[Fact]:
    return [Fact(QUESTIONS, lambda answers: [*_present(host, answers[GPUS]), *_healthy(answers)])]


def wanted(host: HostSpec) -> bool:
    return not host.simulate and host.gpus != 0


def found(answers: Answers) -> list[Gpu]:
    """The GPUs; none where nvidia-smi failed in between, since it has shown nothing reliable then."""
    answer = answers.get(GPUS)
    return gpus.parse_gpus(answer.out) if answer is not None and answer.code == 0 else []


def parse_health(text: str) -> list[Health]:
    """`0, 00000000:1B:00.0, Disabled, 0, [N/A]`; [N/A] is what the GPU does not have."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [
        Health(int(index), bus_id(bus), mig == "Enabled", int(errors) if errors.isdigit() else None, pending == "Yes")
        for index, bus, mig, errors, pending in (row for row in rows if len(row) == 5 and row[0].isdigit())
    ]


def parse_remapped(text: str) -> dict[str, tuple[bool, bool]]:
    """PCI address → whether a row waits for a reset to be remapped, whether one could not be (`0` or `No` if not)."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return {bus_id(bus): (_yes(pending), _yes(failure)) for bus, pending, failure in (r for r in rows if len(r) == 3)}


def bus_id(text: str) -> str:
    """nvidia-smi writes 00000000:1B:00.0 where the kernel's log has 0000:1b:00."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([parts[0][-4:].zfill(4), *parts[1:]])


def _present(host: HostSpec, answer: Answer) -> list[Finding]:
    seen = gpus.parse_gpus(answer.out) if answer.code == 0 else []
    if not seen:
        return [_none(host, answer)]
    text = f"{_models(seen)}, driver {seen[0].driver}"
    if host.gpus is not None and len(seen) < host.gpus:
        step = (
            "a missing GPU has fallen off the bus or was not passed in: see the kernel log, reboot; or correct `gpus`"
        )
        return [Finding(TOPIC, FAULT, f"{text}; hosts.yaml says {host.gpus}", step)]
    if host.gpus is not None and len(seen) > host.gpus:
        return [Finding(TOPIC, OK, f"{text}; hosts.yaml says {host.gpus}, the others stay unused")]
    return [Finding(TOPIC, OK, text)]


def _none(host: HostSpec, answer: Answer) -> Finding:
    expected = f"hosts.yaml says {host.gpus} GPUs; " if host.gpus else ""
    if answer.absent:
        if host.gpus:
            return Finding(TOPIC, FAULT, f"{expected}nvidia-smi is not on PATH", "install NVIDIA's driver")
        step = "a GPU host needs NVIDIA's driver; `gpus: 0` in hosts.yaml says that there are none"
        return Finding(TOPIC, WARNING, "no nvidia-smi on PATH: rows with GPUs are blocked, others run", step)
    if answer.timed_out:
        step = "a GPU or the driver is stuck: see the kernel log; a reboot helps"
        return Finding(TOPIC, FAULT, f"{expected}{answer.said}", step)
    said = f"{answer.out}\n{answer.err}"
    lines = [line.strip() for line in said.splitlines()]
    known = ((line, step) for words, step in _CURES for line in lines if re.search(words, line))
    line, step = next(known, (answer.said, "run nvidia-smi there and see what it says"))
    return Finding(TOPIC, FAULT, f"{expected}{line}", step)


def _models(seen: Sequence[Gpu]) -> str:
    kinds = Counter((gpu.name, gpu.total) for gpu in seen)
    return ", ".join(
        f"{count} x {name}" + ("" if total is None else f" ({total / 1024:.0f} GiB)")
        for (name, total), count in kinds.items()
    )


def _healthy(answers: Answers) -> list[Finding]:
    if not found(answers):
        return []
    if answers[HEALTH].code != 0:
        return [Finding("GPU health", UNKNOWN, answers[HEALTH].said)]
    health = parse_health(answers[HEALTH].out)
    remapped = parse_remapped(answers[REMAPPED].out) if answers[REMAPPED].code == 0 else {}
    troubles = [trouble for gpu in health for trouble in _troubles(gpu, *remapped.get(gpu.bus, (False, False)))]
    if troubles:
        return troubles
    counted = any(gpu.uncorrected is not None for gpu in health)
    text = "no uncorrected ECC error, no page or row pending" if counted else "these GPUs count no ECC errors"
    return [Finding("GPU health", OK, text)]


def _troubles(gpu: Health, pending: bool, failure: bool) -> list[Finding]:
    name = f"GPU {gpu.index} ({gpu.bus})"
    reset = f"with nobody on it: `sudo nvidia-smi --gpu-reset -i {gpu.index}`, or reboot"
    said = []
    if failure:
        said.append(
            Finding("GPU health", FAULT, f"{name}: a broken row of its memory could not be remapped", "replace it")
        )
    if pending or gpu.pages_pending:
        said.append(Finding("GPU health", FAULT, f"{name}: broken memory is taken out only by a reset", reset))
    if gpu.uncorrected:
        # The counter stays until the driver is loaded anew, so this alone does not show that something is wrong now.
        errors = f"{gpu.uncorrected} uncorrected ECC error{'' if gpu.uncorrected == 1 else 's'}"
        said.append(Finding("GPU health", WARNING, f"{name}: {errors} since the driver was loaded", reset))
    if gpu.divided:
        step = f"with nobody on it: `sudo nvidia-smi -i {gpu.index} -mig 0`"
        said.append(Finding("GPU health", FAULT, f"{name}: divided by MIG, and rows need whole GPUs", step))
    return said


def _yes(text: str) -> bool:
    return text == "Yes" or (text.isdigit() and int(text) > 0)
