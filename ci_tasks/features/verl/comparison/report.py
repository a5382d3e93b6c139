"""A comparison as text, and as a page with the curves of both sides over one another, each with its band."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from markupsafe import Markup

from ci_tasks.features.verl.comparison.observed_run import BASE, CANDIDATE, ObservedRun
from ci_tasks.features.verl.comparison.result import ComparedRun, LevelComparison, Pair, Quantity
from ci_tasks.report.html.curves import Curve, figures
from ci_tasks.report.html.templates import assets, environment
from ci_tasks.report.layout import columns, paragraph

_FOLDER = "features/verl/comparison"


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
        lines += [*columns(body, width, head=("", "BASE", "CANDIDATE", "CHANGE"), names=[0]), ""]
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
    lines += [f"{link}: {run.id}" for run in result.runs for link in run.links]
    return [*lines, f"the charts: {result.page}"] if result.page else lines


def page(result: LevelComparison, pairs: Sequence[Pair]) -> str:
    """The page, in one file that asks for nothing."""
    sections = [("verdict", "Verdict"), ("charts", "Charts"), ("runs", "Runs")]
    return (
        environment(_FOLDER)
        .get_template("comparison.html.j2")
        .render(
            assets=assets(),
            sections=sections,
            result=result,
            quantities=[(quantity.name, *_cells(quantity)) for quantity in result.quantities],
            charts=Markup(figures("base and candidate", curves(pairs), "c")),
            runs=[_run_cells(run) for run in result.runs],
        )
    )


def curves(pairs: Sequence[Pair]) -> list[Curve]:
    """Each metric that both sides have, as the mean of each side's runs with one standard deviation around it."""
    sides = {BASE: [base for base, _ in pairs], CANDIDATE: [candidate for _, candidate in pairs]}
    names = list(dict.fromkeys(name for run in sides[BASE] for name in run.curves))
    return [
        _mean_curve(name, side, runs)
        for name in names
        if any(name in run.curves for run in sides[CANDIDATE])
        for side, runs in sides.items()
    ]


def _mean_curve(name: str, side: str, runs: Sequence[ObservedRun]) -> Curve:
    by_step: dict[int, list[float]] = {}
    for run in runs:
        for step, value in run.curves.get(name, ()):
            by_step.setdefault(step, []).append(value)
    steps = sorted(by_step)
    means = [(step, fmean(by_step[step])) for step in steps]
    band = [
        (step, mean - stdev(by_step[step]), mean + stdev(by_step[step]))
        for step, mean in means
        if len(by_step[step]) > 1
    ]
    many = f", mean of {len(runs)} runs ± standard deviation" if len(runs) > 1 else ""
    return Curve("", name, f"{side}{many}", [means], band)


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


def _run_cells(run: ComparedRun) -> tuple[str, str, str, str, str, tuple[str, ...]]:
    reward = "not seen" if run.reward is None else f"{run.reward:.4g}"
    return str(run.pair), run.side, run.id, run.result, reward, run.links
