"""verl's metric lines, as the core reads them by the registry, in short for a person."""

from __future__ import annotations

import pytest

from ci_tasks.registry import metric_formats
from ci_tasks.results.progress import metrics_summary

VERL = (
    b"(TaskRunner pid=9) step:30 - actor/pg_loss:-2.47e-06 - actor/grad_norm:0.91 - val-core/gsm8k/acc/mean@1:0.4761"
    b" - critic/score/mean:0.4677 - critic/rewards/max:1.0 - critic/rewards/mean:np.float64(0.46777) - timing_s/gen:5"
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (VERL, "step 30, rewards 0.4678"),
        (b"step:0 - val-core/openai/gsm8k/acc/mean@1:0.25 - val-aux/num_turns/mean:2.0", "step 0, acc 0.25"),
        (b"step:3 - critic/score/mean:0.5 - actor/pg_loss:0.1", "step 3, score 0.5"),
        (b"step:3 - actor/pg_loss:0.1 - actor/lr:1e-06", "step 3, pg_loss 0.1"),
        (b"2026-11-21 12:00 - INFO - step:by step", ""),
    ],
)
def test_a_line_of_metrics_in_short(line: bytes, expected: str) -> None:
    assert metrics_summary(line, metric_formats()) == expected
