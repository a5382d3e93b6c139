"""The page's charts: few polylines, and words that say the same."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ci_tasks.agent.records import Event, GpuProcessSample, GpuSample
from ci_tasks.logs.metrics import Series
from ci_tasks.report.html.charts import Bar, gpu_charts, metric_charts, phases, timeline

ONE = GpuSample(1000.0, 3, "GPU-d", used=10240, utilization=50.0, watts=400.0)


def test_each_quantity_that_was_seen_is_a_chart_with_few_points_and_short_peaks_stay() -> None:
    samples = [replace(ONE, t=1000.0 + at, used=20480 if at == 777 else 10240) for at in range(5000)]
    charts = gpu_charts({"GPU-d": samples})
    assert [chart.title for chart in charts] == ["Memory in use, GiB", "Utilization, %", "Power, W"]
    assert [len(chart.lines[0].pieces[0].split()) for chart in charts] == [200, 200, 200]
    assert charts[0].lines[0].words == "GPU 3: 10 to 20, at the end 10"
    assert (charts[0].high, charts[0].low, charts[0].first, charts[0].last) == ("20", "0", "0 s", "1 h 22 min")
    assert gpu_charts({}) == []


def test_the_memory_of_other_processes_is_a_chart_of_its_own() -> None:
    theirs = replace(ONE, t=1001.0, processes=(GpuProcessSample(7, 9216, "other"),))
    titles = [chart.title for chart in gpu_charts({"GPU-d": [ONE, theirs, replace(theirs, t=1002.0)]})]
    assert titles[:2] == ["Memory in use, GiB", "Memory of other processes, GiB"]


def test_a_metric_has_a_line_a_source_that_breaks_where_a_value_is_no_number() -> None:
    ours = Series("train", "loss", (((0, 4.0), (1, 2.0), (2, math.nan), (3, 0.0)),))
    ci = Series("train", "loss", (((0, 4.0), (3, 1.0)),))
    (chart,) = metric_charts([("here", ours), ("CI", ci)])
    assert [line.pieces for line in chart.lines] == [
        ["0.0,0.0 33.3,50.0", "100.0,100.0 100.0,100.0"],
        ["0.0,0.0 100.0,75.0"],
    ]
    assert [line.words for line in chart.lines] == [
        "here: 0 to 4, at the end 0; NaN at step 2",
        "CI: 1 to 4, at the end 1",
    ]
    (odd,) = metric_charts([("here", Series("train", "loss", (((5, math.inf),),)))])
    assert (odd.lines[0].pieces, odd.lines[0].words) == ([], "here: ∞ at step 5")


def bar(row: str, began: float, ended: float, **more: Any) -> Bar:
    return Bar(**{"row": row, "status": "passed", "batch": "b", "host": "h", "began": began, "ended": ended, **more})


def test_rows_are_drawn_in_the_order_of_their_starts_with_the_wait_before() -> None:
    later = bar("later", 1100, 1200, held=1150, gpus=(0, 1), phases=[(1101, "step Execute")])
    other = bar("other", 5, 5, batch="a")
    drawn = timeline([later, bar("first", 1000, 1100), other])
    assert [(one.bar.row, one.waiting, one.running) for one in drawn] == [
        ("other", "", "0.0,5 0.3,5"),
        ("first", "", "0.0,5 50.0,5"),
        ("later", "50.0,5 75.0,5", "75.0,5 100.0,5"),
    ]
    assert drawn[2].words == "GPU 0, 1 of h; 1 min 40 s to 3 min 20 s; waited 50 s; step Execute at 1 min 41 s"


def test_phases_say_what_began_and_not_the_same_twice() -> None:
    events = [
        Event(1, "started"),
        Event(2.5, "step", name="Install"),
        Event(3, "waiting", reasons=("GPU 0: somebody",)),
        Event(4, "waiting", reasons=("GPU 0: another",)),
        Event(5, "gpus", ids=(0,)),
    ]
    assert phases(events) == [(1, "started"), (2.5, "step Install"), (3, "waits for GPUs"), (5, "has its GPUs")]
