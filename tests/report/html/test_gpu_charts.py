"""Charts of what a row's GPUs did: bounded, and with the same as a table."""

from __future__ import annotations

import re
from dataclasses import replace

from ci_tasks.agent.records import GpuProcessSample, GpuSample
from ci_tasks.records import GpuPeaks, GpuUse
from ci_tasks.report.html.gpu_charts import RowGpus, gpu_charts, points

ONE = GpuSample(1000.0, 3, "GPU-d", used=10240, utilization=50.0, watts=400.0)
USE = GpuUse(
    (GpuPeaks(3, "GPU-d", 143360, 10240, 9216, 50.0, 400.0, slowed={"power cap": 41.0}),),
    oddities=("GPU 3 was throttled (power cap) for 41 s",),
    not_seen=("Xids: the kernel's log was not read",),
)


def _drawn(samples: list[GpuSample]) -> str:
    return gpu_charts([RowGpus("a <row>", USE, {"GPU-d": samples})])


def test_each_quantity_that_was_seen_is_a_chart_with_few_points() -> None:
    text = _drawn([replace(ONE, t=1000.0 + at) for at in range(5000)])
    assert re.findall("<strong>(.*?)</strong>", text) == ["Memory in use, GiB", "Utilization, %", "Power, W"]
    lines = re.findall('points="([^"]*)"', text)
    assert [len(line.split()) for line in lines] == [200, 200, 200]
    assert "a &lt;row&gt;" in text
    assert "GPU 3 was throttled (power cap) for 41 s" in text
    assert "the kernel&#39;s log was not read" in text
    assert "<td>10 of 140</td><td>9</td><td>50</td><td>400</td>" in text
    assert "<td>power cap 41 s</td>" in text


def test_a_short_peak_is_in_the_line_and_the_memory_of_others_is_another_line() -> None:
    several = [replace(ONE, t=1000.0 + at, used=99 if at == 777 else 1) for at in range(2000)]
    assert max(value for _, value in points(several, lambda one: one.used)) == 99
    theirs = replace(ONE, t=1001.0, processes=(GpuProcessSample(7, 9216, "other"),))
    assert 'class="curve ci" points=' in _drawn([ONE, theirs, replace(theirs, t=1002.0)])
    assert 'class="curve ci" points=' not in _drawn([ONE, replace(ONE, t=1001.0)])
