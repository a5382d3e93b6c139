"""Numbers of rows as text."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.errors import counted
from ci_tasks.features.numbers.result import Band, Drift, ExactComparison, RowNumbers
from ci_tasks.report.layout import columns, paragraph

_MOST_BANDS = 12  # of a row that the terminal shows: of each metric the last step


def text(rows: Sequence[RowNumbers], width: int | None = None) -> list[str]:
    lines: list[str] = []
    for row in rows:
        runs = counted(row.runs, "run")
        lines += [f"{row.label} {row.row} on {row.kind}: {runs} passed, the newest is {row.newest}"]
        if row.accepted:
            lines += paragraph(
                f"counted from {row.accepted.run} on: {row.accepted.by}, {row.accepted.why}", width, "  "
            )
        if row.not_seen:
            lines += paragraph(f"no band: {row.not_seen}", width, "  ")
        if row.bands:
            body = [_band_cells(band) for band in _last_steps(row.bands)[:_MOST_BANDS]]
            head = ("", "RUNS", "MEAN", "DEVIATION", "BAND")
            lines += ["", *columns(body, width, head=head, names=[0])]
            lines += [f"{len(row.bands)} bands in all: --json has them", ""]
            lines += [line for mark in row.marks for line in paragraph(f"the newest run: {mark.sentence}", width, "  ")]
            lines += [line for part in _fit(row) for line in paragraph(part, width, "  ")]
        lines += [line for drift in row.drifts for line in paragraph(_drift(drift), width, "  ")]
        lines.append("")
    return lines[:-1]


def _fit(row: RowNumbers) -> list[str]:
    """Of the bands that the newest run has a value for, whether it is within them; the others are not seen."""
    missing = [f"not seen: the newest run has no value for {row.unseen} of them"] if row.unseen else []
    if row.marks or not row.was_compared:
        return missing
    return ["the newest run is within all of them" if not missing else "the newest run is within all others", *missing]


def exact_text(compared: ExactComparison) -> str:
    if not compared.compared:
        return f"{compared.old} and {compared.new}: not seen: no step has the same metric in both logs"
    first = compared.first
    more = f"; not seen: {compared.unmatched} that only one of them has" if compared.unmatched else ""
    if compared.old_kind != compared.new_kind:
        more += f"; they ran on different hosts or images: {compared.old_kind}, then {compared.new_kind}"
    if first is None:
        shared = " of both" if compared.unmatched else ""
        pair = f"{compared.old} and {compared.new}"
        return f"{pair}: all {compared.compared} numbers{shared} are equal, as the logs print them{more}"
    rank = f", rank {first.rank}" if first.rank else ""
    training = f" of training {first.training}" if first.training > 1 else ""
    return (
        f"{compared.old} and {compared.new} part at step {first.step}{training}{rank}: "
        f"{first.name} is {first.old}, then {first.new}{more}"
    )


def _last_steps(bands: Sequence[Band]) -> list[Band]:
    return list({(band.name, band.training): band for band in bands}.values())


def _band_cells(band: Band) -> tuple[str, ...]:
    step = "" if band.step is None else f", step {band.step}"
    training = f", training {band.training}" if band.training > 1 else ""
    deviation = f"{band.deviation:.3g}" if band.deviation else "all equal"
    return (
        f"{band.name}{training}{step}",
        str(band.runs),
        f"{band.mean:.5g}",
        deviation,
        f"{band.low:.5g} … {band.high:.5g}",
    )


def _drift(drift: Drift) -> str:
    where = f"{drift.name} changed at {drift.since} ({drift.since_time[:10]}): "
    if not drift.p:  # no scatter that a chance could be computed from
        return f"{where}{drift.before:.7g} in every run before, {drift.after:.7g} in every one since"
    return (
        f"{where}mean {drift.before:.5g} before, {drift.after:.5g} since; by chance in {drift.p:.2g} of such histories"
    )
