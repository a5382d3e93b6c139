"""What nvidia-smi is asked once a second, and how its lines are read."""

from __future__ import annotations

import pytest

from ci_tasks.agent.gpus.sample_query import known_fields, parse_reading, slowdowns
from ci_tasks.agent.records import GpuSample

HELP = """
List of valid properties to query for the switch "--query-gpu":

"index"
Zero based index of the GPU.
"uuid" or "gpu_uuid"
"memory.used"
"memory.total"
"pci.bus_id" or "gpu_bus_id"
"utilization.gpu"
"power.draw"
"temperature.gpu"
"clocks.current.sm" or "clocks.sm"
"ecc.errors.corrected.volatile.total"
"ecc.errors.uncorrected.volatile.total"
"""
NEW = '"clocks_event_reasons.active"\n"clocks_throttle_reasons.active"\n'
FIELDS = {
    "a new driver": (HELP + NEW, "clocks_event_reasons.active"),
    "an older one": (HELP + '"clocks_throttle_reasons.active"\n', "clocks_throttle_reasons.active"),
}


@pytest.mark.parametrize(("text", "reasons"), FIELDS.values(), ids=FIELDS)
def test_a_driver_is_asked_for_fields_by_the_names_that_it_knows(text: str, reasons: str) -> None:
    assert known_fields(text).command == [
        "nvidia-smi",
        "--query-gpu=index,uuid,memory.used,memory.total,pci.bus_id,utilization.gpu,power.draw,temperature.gpu,clocks.sm,"
        f"{reasons},ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total",
        "--format=csv,noheader,nounits",
        "-lms",
        "1000",
    ]


def test_without_help_only_what_every_driver_knows_is_asked() -> None:
    assert known_fields("").names == ("index", "uuid", "memory.used", "memory.total")


LINES = {
    "all values": (
        "1, GPU-b, 61440, 143771, 00000000:1B:00.0, 97, 651.20, 61, 1755, 0x0000000000000044, 12, 2",
        GpuSample(
            100.0,
            1,
            "GPU-b",
            1.0,
            61440,
            143771,
            97,
            651.2,
            61,
            1755,
            {"power cap": 1, "thermal, by hardware": 1},
            12,
            2,
        ),
    ),
    "what the GPU does not have": (
        "0, GPU-a, 4, [N/A], 00000000:1B:00.0, [N/A], [Not Supported], 30, [N/A], [N/A], [N/A], [N/A]",
        GpuSample(100.0, 0, "GPU-a", used=4, celsius=30),
    ),
    "another line": ("Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error", None),
    "half a line": ("1, GPU-b, 61440", None),
    "a huge number": (
        f"0, GPU-a, {'9' * 400}, 143771, 00000000:1B:00.0, 97, 1e999, 61, 1755, 0x0, 0, 0",
        GpuSample(100.0, 0, "GPU-a", 1.0, None, 143771, 97, None, 61, 1755, {}, 0, 0),
    ),
}


@pytest.mark.parametrize(("line", "sample"), LINES.values(), ids=LINES)
def test_a_line_is_a_sample_of_one_gpu(line: str, sample: GpuSample | None) -> None:
    reading = parse_reading(known_fields(HELP.replace('"ecc', '"clocks_event_reasons.active"\n"ecc')), line, 100.0)
    assert (reading and reading.sample) == sample
    assert reading is None or reading.bus == "0000:1b:00"


MASKS = {
    "0x0000000000000000": [],
    "0x0000000000000001": [],  # idle
    "0x0000000000000004": ["power cap"],
    "0x0000000000000048": ["thermal, by hardware"],  # the slowdown is its effect
    "0x0000000000000008": ["hardware slowdown"],
    "[N/A]": [],
    "": [],
}


@pytest.mark.parametrize(("mask", "reasons"), MASKS.items(), ids=MASKS)
def test_reasons_for_which_a_clock_is_held_down(mask: str, reasons: list[str]) -> None:
    assert slowdowns(mask) == reasons
