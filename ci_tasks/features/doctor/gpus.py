"""A host's GPUs: how many against hosts.yaml, driver, and what nvidia-smi counts as broken in them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ci_tasks.agent.gpus import nvidia_smi
from ci_tasks.agent.gpus.nvidia_smi import Gpu, bus_id
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.errors import counted
from ci_tasks.features.doctor.check_results import CheckResult, fault, ok, unknown, warning
from ci_tasks.features.doctor.host_fact import HostFact, QueryAnswers

TOPIC = "GPUs"
GPUS, HEALTH, REMAPPED = "gpus", "gpu health", "remapped rows"
QUERIES: dict[str, Sequence[str]] = {
    GPUS: nvidia_smi.QUERY_GPUS,
    # Asked apart: one field that a driver does not know makes nvidia-smi refuse the whole question.
    HEALTH: nvidia_smi.QUERY_HEALTH,
    REMAPPED: nvidia_smi.QUERY_REMAPPED,
}
# What nvidia-smi says when it finds nothing → what to do
_REMEDIES = (
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
class GpuHealth:
    """`uncorrected` counts since the driver was loaded; None where the GPU does not count (no ECC)."""

    index: int
    bus: str
    mig_enabled: bool
    uncorrected: int | None
    pages_pending: bool


def facts(host: HostSpec) -> list[HostFact]:
    return [HostFact(QUERIES, lambda answers: [*_present(host, answers[GPUS]), *_healthy(answers)])]


def uses_gpus(host: HostSpec) -> bool:
    return not host.simulate and host.gpus != 0


def visible_gpus(answers: QueryAnswers) -> list[Gpu]:
    """The GPUs; none where nvidia-smi failed in between, since it has shown nothing reliable then."""
    answer = answers.get(GPUS)
    return nvidia_smi.parse_gpus(answer.out) if answer is not None and answer.code == 0 else []


def parse_health(text: str) -> list[GpuHealth]:
    """`0, 00000000:1B:00.0, Disabled, 0, [N/A]`; [N/A] is what the GPU does not have."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [
        GpuHealth(
            int(index), bus_id(bus), mig == "Enabled", int(errors) if errors.isdigit() else None, pending == "Yes"
        )
        for index, bus, mig, errors, pending in (row for row in rows if len(row) == 5 and row[0].isdigit())
    ]


def parse_remapped(text: str) -> dict[str, tuple[bool, bool]]:
    """PCI address → whether a row waits for a reset to be remapped, whether one could not be (`0` or `No` if not)."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return {
        bus_id(bus): (_is_yes(pending), _is_yes(failure)) for bus, pending, failure in (r for r in rows if len(r) == 3)
    }


def _present(host: HostSpec, answer: QueryAnswer) -> list[CheckResult]:
    gpus = nvidia_smi.parse_gpus(answer.out) if answer.code == 0 else []
    if not gpus:
        return [_none(host, answer)]
    text = f"{_models(gpus)}, driver {gpus[0].driver}"
    if host.gpus is not None and len(gpus) < host.gpus:
        step = (
            "a missing GPU has fallen off the bus or was not passed in: see the kernel log, reboot; or correct `gpus`"
        )
        return [fault(TOPIC, f"{text}; hosts.yaml says {host.gpus}", step)]
    if host.gpus is not None and len(gpus) > host.gpus:
        return [ok(TOPIC, f"{text}; hosts.yaml says {host.gpus}, the others stay unused")]
    return [ok(TOPIC, text)]


def _none(host: HostSpec, answer: QueryAnswer) -> CheckResult:
    expected = f"hosts.yaml says {host.gpus} GPUs; " if host.gpus else ""
    if answer.is_missing:
        if host.gpus:
            return fault(TOPIC, f"{expected}nvidia-smi is not on PATH", "install NVIDIA's driver")
        step = "a GPU host needs NVIDIA's driver; `gpus: 0` in hosts.yaml says that there are none"
        return warning(TOPIC, "no nvidia-smi on PATH: rows with GPUs are blocked, others run", step)
    if answer.timed_out:
        step = "a GPU or the driver is stuck: see the kernel log; a reboot helps"
        return fault(TOPIC, f"{expected}{answer.last_line}", step)
    output = f"{answer.out}\n{answer.err}"
    lines = [line.strip() for line in output.splitlines()]
    matches = ((line, step) for pattern, step in _REMEDIES for line in lines if re.search(pattern, line))
    line, step = next(matches, (answer.last_line, "run nvidia-smi there and read its output"))
    return fault(TOPIC, f"{expected}{line}", step)


def _models(gpus: Sequence[Gpu]) -> str:
    kinds = Counter((gpu.name, gpu.total) for gpu in gpus)
    return ", ".join(
        f"{count} x {name}" + ("" if total is None else f" ({total / 1024:.0f} GiB)")
        for (name, total), count in kinds.items()
    )


def _healthy(answers: QueryAnswers) -> list[CheckResult]:
    if not visible_gpus(answers):
        return []
    if answers[HEALTH].code != 0:
        return [unknown("GPU health", answers[HEALTH].last_line)]
    health = parse_health(answers[HEALTH].out)
    remapped = parse_remapped(answers[REMAPPED].out) if answers[REMAPPED].code == 0 else {}
    problems = [problem for gpu in health for problem in _problems(gpu, *remapped.get(gpu.bus, (False, False)))]
    if problems:
        return problems
    counted = any(gpu.uncorrected is not None for gpu in health)
    text = "no uncorrected ECC error, no page or row pending" if counted else "these GPUs count no ECC errors"
    return [ok("GPU health", text)]


def _problems(gpu: GpuHealth, pending: bool, failure: bool) -> list[CheckResult]:
    name = f"GPU {gpu.index} ({gpu.bus})"
    reset = f"with nobody on it: `sudo nvidia-smi --gpu-reset -i {gpu.index}`, or reboot"
    results = []
    if failure:
        results.append(fault("GPU health", f"{name}: a broken row of its memory could not be remapped", "replace it"))
    if pending or gpu.pages_pending:
        results.append(fault("GPU health", f"{name}: broken memory is taken out only by a reset", reset))
    if gpu.uncorrected:
        # The counter stays until the driver is loaded anew, so this alone does not show that something is wrong now.
        errors = counted(gpu.uncorrected, "uncorrected ECC error")
        results.append(warning("GPU health", f"{name}: {errors} since the driver was loaded", reset))
    if gpu.mig_enabled:
        step = f"with nobody on it: `sudo nvidia-smi -i {gpu.index} -mig 0`"
        results.append(fault("GPU health", f"{name}: split by MIG, but rows need whole GPUs", step))
    return results


def _is_yes(text: str) -> bool:
    return text == "Yes" or (text.isdigit() and int(text) > 0)
