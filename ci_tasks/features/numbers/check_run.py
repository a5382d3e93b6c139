"""A run that passed, against the row's runs before it."""

from __future__ import annotations

import sys

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.errors import UsageError, printable
from ci_tasks.features.numbers.bands import counted, learn, marks
from ci_tasks.features.numbers.bands_file import acceptances
from ci_tasks.features.numbers.read_numbers import numbers_of, passed_numbers
from ci_tasks.records import RunRecord


def check_run(run: RunDir, record: RunRecord) -> tuple[str, ...]:
    """A sentence for each value outside of what earlier runs of the row gave on such GPUs and image, the furthest
    first; none where they are too few. A run that passed has passed, whatever state the file of acceptances is in."""
    own = numbers_of(run, record)
    try:
        accepted = acceptances(record.label, record.row, own.kind)
    except UsageError as error:
        print(printable(f"{record.id} is not compared with earlier runs: {error}"), file=sys.stderr)
        return ()
    earlier = [each for each in passed_numbers(record.label, record.row) if each.kind == own.kind and each.id != own.id]
    return tuple(mark.sentence for mark in marks(own, learn(counted(earlier[::-1], accepted))))
