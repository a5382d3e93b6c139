"""A comparison as `--json` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.failures.comparison.metrics import MetricComparison


@dataclass(frozen=True)
class SideResult:
    """A row's runs on one tree that passed or failed, `from_history` of them of earlier commands. `low` to `high` is
    the 95 % interval of the failure rate. `failures` are counts by way; `inconclusive` by status are no evidence.
    `gpus` are the sets on which runs ran."""

    runs: int
    failed: int
    low: float
    high: float
    failures: Mapping[str, int] = field(default_factory=dict)
    inconclusive: Mapping[str, int] = field(default_factory=dict)
    from_history: int = 0
    gpus: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowComparison:
    """`verdict` is yours, already broken, flaky, fixed, fine, blocked, cannot tell, `passes` for a row of several that
    passed on your tree and was not compared, or cancelled. `way` is the failure that decides, "" for all together.
    `differs` is what the two workflows give the row otherwise."""

    row: str
    verdict: str
    why: str
    way: str
    yours: SideResult
    base: SideResult
    metrics: MetricComparison
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparisonResult:
    """`verdict` is that of the row that matters most. `error` is the most probable that a row's word is wrong, `rise`
    what yours has to fail more often so that `flaky`, `already broken` or `fine` is wrong."""

    verdict: str
    exit_code: int
    label: str
    host: str
    base: str
    yours: str
    error: float
    rise: float
    rows: tuple[RowComparison, ...] = ()
