"""The rows of a label → their bands, what does not fit, and drift; or two runs of a row, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from ci_tasks.agent.files import open_file
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.features.numbers.bands import LEAST_RUNS, MOST_RUNS, counted, learn, marks, unseen
from ci_tasks.features.numbers.bands_file import acceptances
from ci_tasks.features.numbers.drift import drifts
from ci_tasks.features.numbers.exact import SeriesByRank, compare_exactly, lines_by_rank
from ci_tasks.features.numbers.read_numbers import kind_of, passed_numbers, record_or_none
from ci_tasks.features.numbers.result import BandsFile, ExactComparison, RowNumbers, RunNumbers
from ci_tasks.registry import metric_formats
from ci_tasks.results.history.passed_runs import runs_of_row
from ci_tasks.results.metrics import read_series


def row_numbers(label: str, row: str, file: BandsFile = BandsFile(), path: str | None = None) -> Iterator[RowNumbers]:
    """Of a row, one for each kind of host and image, the one that ran last first. With `path`, where `file` was read,
    its bands count, and those of the history do not."""
    runs = sorted(passed_numbers(label, row), key=lambda run: run.kind)
    kinds = [sorted(group, key=lambda run: run.started_at) for _, group in groupby(runs, key=lambda run: run.kind)]
    for several in sorted(kinds, key=lambda several: several[-1].started_at, reverse=True):
        yield _of_kind(label, row, several, file, path)


def _of_kind(label: str, row: str, runs: Sequence[RunNumbers], file: BandsFile, path: str | None) -> RowNumbers:
    kind, newest = runs[0].kind, runs[-1]
    accepted = acceptances(label, row, kind, file)
    several = counted(runs[:-1], accepted)
    if path is None:
        known = learn(several)
        why = f"a band takes {LEAST_RUNS} runs before the newest, and has {len(several)}"
    else:
        committed = {each.kind: each.bands for each in file.rows if (each.label, each.row) == (label, row)}
        known = committed.get(kind, ())
        why = f"{path} has this row on: {'; '.join(committed) or 'nothing'}"
    return RowNumbers(
        label=label,
        row=row,
        kind=kind,
        runs=len(runs),
        newest=newest.id,
        bands=known,
        marks=marks(newest, known),
        drifts=drifts([run for run in runs if not accepted or run.id >= accepted[-1].run]),
        accepted=accepted[-1] if accepted else None,
        not_seen="" if known else why,
        unseen=unseen(newest, known),
    )


def exact(label: str, row: str) -> ExactComparison | None:
    """The newest run that passed against the one before it; None where there are no two."""
    runs = runs_of_row(label, row, MOST_RUNS)  # some logs may be gone
    if len(runs) < 2:
        return None
    new, old = runs[:2]
    compared = compare_exactly(_id(old), _series(old), _id(new), _series(new))
    return replace(compared, old_kind=_kind(old), new_kind=_kind(new))


def _id(run: RunDir) -> str:
    path = Path(run.path)
    return f"{path.parent.name}.{path.name}"


def _kind(run: RunDir) -> str:
    record = record_or_none(run)
    return kind_of(record) if record is not None else ""


def _series(run: RunDir) -> SeriesByRank:
    with open_file(run.log) as log:
        ranks = lines_by_rank(log)
    return {rank: read_series(lines, metric_formats()) for rank, lines in ranks.items()}
