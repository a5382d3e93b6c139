"""What nvidia-smi is asked once a second, and pure parsers of its lines.

One field that a driver does not know makes nvidia-smi refuse the whole query. So its own help says which there are.
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Tuple

from ..quick_dataclass import dataclass
from ..records import GpuSample
from .nvidia_smi import QUERY_APPS
from .xids import bus_id

HELP = ("nvidia-smi", "--help-query-gpu")
GPU_MILLISECONDS = 1000
# The processes on a GPU change seldom, and each query costs as much as one for all GPUs' values.
PROCESS_MILLISECONDS = 2000
PROCESS_COMMAND = (*QUERY_APPS, "-lms", str(PROCESS_MILLISECONDS))
# Value → the names that drivers know it by, the newest first.
_FIELDS: Dict[str, Tuple[str, ...]] = {
    "index": ("index",),
    "uuid": ("uuid", "gpu_uuid"),
    "used": ("memory.used",),
    "total": ("memory.total",),
    "bus": ("pci.bus_id", "gpu_bus_id"),
    "utilization": ("utilization.gpu",),
    "watts": ("power.draw",),
    "celsius": ("temperature.gpu",),
    "sm_mhz": ("clocks.sm", "clocks.current.sm"),
    "slowed": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    "corrected": ("ecc.errors.corrected.volatile.total",),
    "uncorrected": ("ecc.errors.uncorrected.volatile.total",),
}
_ALWAYS = ("index", "uuid", "used", "total")  # every driver knows them
_NAME = re.compile(r'"([a-z0-9_.]+)"')
# Bits of clocks_event_reasons.active, as in nvml.h. An idle GPU and clocks that somebody set are no throttling.
_SLOWDOWNS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}
_THERMAL_OR_BRAKE = 0x40 | 0x80  # of these a hardware slowdown is the effect


@dataclass(frozen=True)
class GpuQuery:
    """The values that nvidia-smi is asked for, and how this driver calls them."""

    values: Tuple[str, ...]
    names: Tuple[str, ...]

    @property
    def command(self) -> List[str]:
        query = "--query-gpu=%s" % ",".join(self.names)
        return ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", str(GPU_MILLISECONDS)]


@dataclass(frozen=True)
class GpuReading:
    """A sample, and the GPU's PCI address, "" where it is not known."""

    sample: GpuSample
    bus: str = ""


def known_fields(help_text: str) -> GpuQuery:
    """The query of what this driver knows, by the output of HELP."""
    known = set(_NAME.findall(help_text))
    chosen = []
    for value, names in _FIELDS.items():
        name = next((name for name in names if name in known), names[0] if value in _ALWAYS else None)
        if name is not None:
            chosen.append((value, name))
    return GpuQuery(tuple(value for value, _ in chosen), tuple(name for _, name in chosen))


def parse_reading(query: GpuQuery, line: str, at: float) -> Optional[GpuReading]:
    """A line of the query's output; None for one that is about no GPU, such as an error about a lost one."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(query.values):
        return None
    values = {value: cells[at] for at, value in enumerate(query.values)}
    if not values["index"].isdigit() or not values["uuid"]:
        return None
    sample = GpuSample(
        t=round(at, 2),
        gpu=int(values["index"]),
        uuid=values["uuid"],
        used=_integer(values, "used"),
        total=_integer(values, "total"),
        utilization=_number(values, "utilization"),
        watts=_number(values, "watts"),
        celsius=_integer(values, "celsius"),
        sm_mhz=_integer(values, "sm_mhz"),
        slowed=dict.fromkeys(slowdowns(values.get("slowed", "")), 1.0),
        corrected=_integer(values, "corrected"),
        uncorrected=_integer(values, "uncorrected"),
    )
    return GpuReading(sample, bus_id(values.get("bus", "")))


def slowdowns(text: str) -> List[str]:
    """Why a clock is held down, by a mask as 0x0000000000000004."""
    try:
        mask = int(text, 16)
    except ValueError:
        return []
    if mask & _THERMAL_OR_BRAKE:
        mask &= ~0x8
    return [reason for bit, reason in _SLOWDOWNS.items() if mask & bit]


def _number(values: Dict[str, str], name: str) -> Optional[float]:
    text = values.get(name, "")
    return float(text) if re.match(r"\d{1,9}(\.\d{1,9})?\Z", text) else None


def _integer(values: Dict[str, str], name: str) -> Optional[int]:
    text = values.get(name, "")
    return int(text) if re.match(r"\d{1,12}\Z", text) else None
