"""The command `numbers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import JSON, LABEL, ONLY, switch, text
from ci_tasks.cli.output import people_read_stderr, print_json
from ci_tasks.errors import UsageError

if TYPE_CHECKING:
    from ci_tasks.features.numbers.result import RowNumbers


@dataclass(frozen=True)
class NumbersOptions:
    label: str = LABEL.field()
    only: str | None = ONLY.field()
    exact: bool = switch(
        "compare the newest run of each row with the one before it, bit for bit",
        excludes=tuple((name, "it has no bands", "") for name in ("bands", "export", "accept")),
    ).field()
    bands: str | None = text(
        "compare with the bands in this file, not with those of the runs kept here", "FILE"
    ).field()
    export: str | None = text(
        "write the bands into a file, for review; other rows in it stay",
        "FILE",
    ).field()
    accept: str | None = text("the newest run of a row is right: count from it on", "RUN").field()
    why: str | None = text("with --accept: the reason, which is kept", "TEXT", needs="accept").field()
    strict: bool = switch("exit code 1 where a run does not fit or has no number to compare, or two runs part").field()
    json: bool = JSON.field()


def numbers(options: NumbersOptions) -> int:
    """
    ci-tasks numbers precision                           what passing runs gave, and whether the newest fits
    ci-tasks numbers precision --exact                   is the newest bit for bit as the one before?
    ci-tasks numbers precision --export bands.json       for a file that a team commits and reviews
    ci-tasks numbers precision --bands bands.json --strict
    ci-tasks numbers precision --accept RUN --why "new tokenizer"
    """
    parts = [part.strip() for part in (options.only or "").split(",") if part.strip()]
    rows = _rows(options.label, parts)
    return _exact(options, rows) if options.exact else _bands(options, rows)


def _rows(label: str, parts: list[str]) -> list[str]:
    """The rows that have passed. Raises UsageError where there is none."""
    from ci_tasks.results.history.queries import rows_that_passed

    rows = [row for row in rows_that_passed(label) if not parts or any(part in row for part in parts)]
    if not rows:
        matching = f" whose name contains {','.join(parts)!r}" if parts else ""
        raise UsageError(
            f"no run of a row of {label}{matching} that passed is kept here",
            hint="`ci-tasks runs --status passed` lists the runs",
        )
    return rows


def _exact(options: NumbersOptions, rows: list[str]) -> int:
    from ci_tasks.agent.codec import encode
    from ci_tasks.features.numbers.report import exact_text
    from ci_tasks.features.numbers.row_numbers import exact

    compared = [each for row in rows if (each := exact(options.label, row)) is not None]
    if not compared:
        raise UsageError("no row has two runs that passed", hint=f"`ci-tasks run {options.label}` makes one")
    if options.json:
        print_json([encode(each, versioned=False) for each in compared])
    else:
        print("\n".join(map(exact_text, compared)))
    return int(options.strict and any(each.first is not None or not each.compared for each in compared))


def _bands(options: NumbersOptions, rows: list[str]) -> int:
    from dataclasses import replace
    from pathlib import Path

    from ci_tasks.agent.codec import encode
    from ci_tasks.features.numbers import bands_file
    from ci_tasks.features.numbers.report import text as as_text
    from ci_tasks.features.numbers.result import BandsFile
    from ci_tasks.features.numbers.row_numbers import row_numbers
    from ci_tasks.safe_output import terminal_width

    def every(known: BandsFile) -> list[RowNumbers]:
        return [each for row in rows for each in row_numbers(options.label, row, known, options.bands)]

    exported = Path(options.export) if options.export else None
    file = bands_file.read_bands(exported, must_exist=False) if exported else BandsFile()
    known = bands_file.read_bands(Path(options.bands)) if options.bands else BandsFile(accepted=file.accepted)
    with people_read_stderr(options.json):
        if options.accept is not None:
            accepted = bands_file.accept(every(known), options.accept, options.why or "")
            known = replace(known, accepted=(*known.accepted, accepted))
            print(f"{accepted.run} is accepted: {accepted.label} {accepted.row} counts from it on")
        result = every(known)
        if exported:
            print(f"{exported}: the bands of {bands_file.write_bands(exported, result, file)} of {len(result)} rows")
    if options.json:
        print_json([encode(each, versioned=False) for each in result])
    elif not exported and options.accept is None:
        print("\n".join(as_text(result, terminal_width())))
    return int(options.strict and (any(each.marks for each in result) or not _were_compared(options, result)))


def _were_compared(options: NumbersOptions, result: list[RowNumbers]) -> bool:
    """Whether the newest run of each row had a band to fit in; without --bands a row may be too new to have any."""
    newest = {each.row: each for each in reversed(result)}  # of a row the kind that ran last comes first
    return all(each.was_compared or not (each.bands or options.bands) for each in newest.values())
