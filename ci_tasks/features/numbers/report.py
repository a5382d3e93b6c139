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
            lines += [] if row.marks else ["  the newest run is within all of them"]
        lines += [line for drift in row.drifts for line in paragraph(_drift(drift), width, "  ")]
        lines.append("")
    return lines[:-1]


def exact_text(compared: ExactComparison) -> str:
    if not compared.compared:
        return f"{compared.old} and {compared.new}: not seen: no step has the same metric in both logs"
    first = compared.first
    if first is None:
        return f"{compared.old} and {compared.new}: all {compared.compared} numbers are equal, as the logs print them"
    rank = f", rank {first.rank}" if first.rank else ""
    training = f" of training {first.training}" if first.training > 1 else ""
    return (
        f"{compared.old} and {compared.new} part at step {first.step}{training}{rank}: "
        f"{first.name} is {first.old!r}, then {first.new!r}"
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
    return (
        f"{drift.name} changed at {drift.since} ({drift.since_time[:10]}): mean {drift.before:.5g} before, "
        f"{drift.after:.5g} since; by chance in {drift.p:.2g} of such histories"
    )
