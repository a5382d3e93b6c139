"""A comparison as text."""

from __future__ import annotations

from statistics import fmean

from ci_tasks.features.verl.comparison.observed_run import ObservedRun
from ci_tasks.features.verl.comparison.result import LevelComparison, Quantity
from ci_tasks.report.table import Table, paragraph


def progress(run: ObservedRun, planned: int) -> str:
    reward = [value for _, value in run.reward]
    half = f", reward {fmean(reward[len(reward) // 2 :]):.3f} in the last half" if reward else ""
    pace = f", {run.step_seconds:.1f} s a step" if run.step_seconds is not None else ""
    return f"pair {run.pair} of {planned}, {run.side}: {run.result}{half}{pace}: {run.id}"


def text(result: LevelComparison, width: int | None = None) -> list[str]:
    lines = [*paragraph(f"Result: {result.result} - {result.sentence}", width)]
    lines += [f"Base:      {result.base}", f"Candidate: {result.candidate}", f"verl:      {result.verl}"]
    lines += [f"Pairs:     {result.pairs} of at most {result.planned}, on {result.host}", ""]
    if result.differences:
        lines += ["Not the same on both sides:", *(f"- {line}" for line in result.differences), ""]
    known = [quantity for quantity in result.quantities if quantity.base is not None or quantity.candidate is not None]
    if known:
        body = [(quantity.name, *_cells(quantity)) for quantity in known]
        lines += [*Table(body, ("", "BASE", "CANDIDATE", "CHANGE")).text(width), ""]
    not_seen = [quantity.name for quantity in result.quantities if quantity not in known]
    if all("memory" not in quantity.name for quantity in result.quantities):
        not_seen.append("memory of a rank")
    if not_seen:
        lines += [f"Not seen: {', '.join(not_seen)}", ""]
    if result.learning:
        lines += [
            *paragraph(
                f"Learning: {result.learning.outcome}. A Pass is wrong in at most {result.learning.error:.0%} of "
                f"comparisons with a candidate {100 * result.learning.margin:g} points below its base, a Fail in at "
                f"most {result.learning.error:.0%} with one that is not below it.",
                width,
            )
        ]
    return [*lines, *(f"{link}: {run.id}" for run in result.runs for link in run.links)]


def _cells(quantity: Quantity) -> tuple[str, str, str]:
    base, candidate = quantity.base, quantity.candidate
    change = "–"
    if base is not None and candidate is not None:
        change = f"{candidate - base:+.3g}" + (f" ({(candidate - base) / base:+.1%})" if base else "")
    return (
        _value(base, quantity.base_deviation, quantity.unit),
        _value(candidate, quantity.candidate_deviation, quantity.unit),
        change,
    )


def _value(mean: float | None, deviation: float | None, unit: str) -> str:
    if mean is None:
        return "not seen"
    scatter = f" ± {deviation:.2g}" if deviation is not None else ""
    return f"{mean:.4g}{scatter}{f' {unit}' if unit else ''}"
