"""The command `diff`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import JSON, ONE_RUN, REPO, Option, positional, switch, text
from ci_tasks.cli.output import print_json
from ci_tasks.resources import user_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci_tasks.features.difference.result import ExactComparison, GoldenComparison

_RUN = replace(ONE_RUN, help="a run's id or prefix, a record.json, a log of CI, or `last-passed`")
_NO_REPORT = (("markdown", "it is for a comparison of all that differs", ""),)
_ONE_RUN = (("other", "one run is compared with the file, or written to it", "name one run"), *_NO_REPORT)


@dataclass(frozen=True)
class DiffOptions:
    run: str = _RUN.field()
    other: str | None = positional(
        "the run that is asked about, if RUN is the earlier one (default: RUN, with its row's last that passed)",
        required=False,
    ).field()
    repo: str | None = REPO.field(help="where the commits of both are (default: where the runs took them from)")
    exact: bool = switch(
        "whether metrics and checkpoint hashes in both logs are equal, bit for bit; exit code 1 if not",
        excludes=_NO_REPORT,
    ).field()
    golden: str | None = text(
        "compare RUN with golden values in Megatron-LM's form; exit code 1 if a value differs or is missing",
        "FILE",
        excludes=(("exact", "golden values have a tolerance", ""), *_ONE_RUN),
    ).field()
    tolerance: float = Option(
        "with --golden: how far a value may be from the file's, relative to it",
        float,
        default=0.05,
        metavar="SHARE",
        unit="the file's value",
        needs="golden",
    ).field()
    write_golden: str | None = text(
        "write the metrics of RUN, which passed, as golden values",
        "FILE",
        excludes=(*((name, "it only writes the file", "") for name in ("exact", "golden", "json")), *_ONE_RUN),
    ).field()
    markdown: bool = switch("print markdown").field()
    json: bool = JSON.field(excludes=(("markdown", "both would be on standard output", ""),))


def diff(options: DiffOptions) -> int:
    """
    ci-tasks diff last                          what changed since this row last passed
    ci-tasks diff RUN RUN                       the earlier one first
    ci-tasks diff ci.log last --markdown
    ci-tasks diff record.json last --json
    ci-tasks diff RUN RUN --exact               are metrics and checkpoints equal, bit for bit?
    ci-tasks diff RUN --write-golden golden.json
    ci-tasks diff last --golden golden.json --tolerance 0.01

    Exit code 0 whatever differs; with --exact and --golden 1 unless all of it is shown to be equal.
    """
    from ci_tasks.agent.codec import encode
    from ci_tasks.features.difference import report
    from ci_tasks.features.difference.diff_runs import diff_runs
    from ci_tasks.safe_output import terminal_width

    if options.write_golden:
        return _write_golden(options, options.write_golden)
    if options.golden:
        return _golden(options, options.golden)
    if options.exact:
        return _exact(options)
    compared = diff_runs(options.run, options.other, options.repo)
    if options.json:
        print_json(encode(compared.difference, versioned=False))
    elif options.markdown:
        print("\n".join(report.markdown(compared)))
    else:
        print("\n".join(report.text(compared, terminal_width())))
    return 0


def _exact(options: DiffOptions) -> int:
    from ci_tasks.features.difference import exact
    from ci_tasks.features.difference.diff_runs import two_sides
    from ci_tasks.features.difference.read_run import logged_results

    old, new = two_sides(options.run, options.other)
    compared = exact.compare_exactly(old.id, logged_results(old), new.id, logged_results(new))
    return _shown(compared, exact.text(compared), as_json=options.json)


def _golden(options: DiffOptions, file: str) -> int:
    from ci_tasks.features.difference import golden
    from ci_tasks.features.difference.diff_runs import one_side
    from ci_tasks.features.difference.read_run import logged_results

    wanted = golden.read_golden(user_path(file))
    side = one_side(options.run)
    seen = golden.golden_of(logged_results(side))
    compared = golden.compare_with_golden(side.id, seen, file, wanted, options.tolerance)
    return _shown(compared, golden.text(compared), as_json=options.json)


def _write_golden(options: DiffOptions, file: str) -> int:
    from ci_tasks.errors import UsageError, counted
    from ci_tasks.features.difference import golden
    from ci_tasks.features.difference.diff_runs import one_side
    from ci_tasks.features.difference.read_run import logged_results
    from ci_tasks.records import PASSED

    side = one_side(options.run)
    values = golden.golden_of(logged_results(side))
    if side.status != PASSED or not values:
        problem = f"is {side.status or 'unfinished'}" if side.status != PASSED else "has no metric by step in its log"
        raise UsageError(f"{side.id} {problem}: no golden values", hint="`ci-tasks runs --status passed` lists runs")
    golden.write_golden(user_path(file), values)
    print(f"{file}: {counted(len(values), 'metric')} of {side.id}")
    return 0


def _shown(compared: ExactComparison | GoldenComparison, lines: Sequence[str], *, as_json: bool) -> int:
    """Print a comparison. Returns the exit code."""
    from ci_tasks.agent.codec import encode
    from ci_tasks.features.difference.result import EXIT_CODES

    if as_json:
        print_json(encode(compared, versioned=False))
    else:
        print("\n".join(lines))
    return EXIT_CODES[compared.outcome]
