"""The command `diff`."""

from __future__ import annotations

from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import JSON, ONE_RUN, Option, positional, switch, text
from ci_tasks.cli.shared import print_result
from ci_tasks.errors import UsageError, counted
from ci_tasks.resources import user_path

_OTHER = "the later run (default: compare RUN with the last passed run of its row)"
_EXACT = "check that metrics and checkpoint hashes in both logs are equal, bit for bit; exit code 1 if not"
_GOLDEN = "compare RUN with golden values in Megatron-LM's format; exit code 1 if a value differs or is missing"
_WRITE = "write the metrics of a passed RUN as golden values"
_FAR = "with --golden: largest relative difference from the file's value"
_ONE_PERCENT = "for example --tolerance 0.01, which is 1 %"
_TOLERANCE = Option(_FAR, float, 0.05, "SHARE", "parts of the file's value", needs="golden", hint=_ONE_PERCENT)


@dataclass(frozen=True)
class DiffOptions:
    run: str = replace(ONE_RUN, help="a run's id or prefix").field()
    other: str | None = positional(_OTHER, required=False).field()
    exact: bool = switch(_EXACT).field()
    golden: str | None = text(_GOLDEN, "FILE", excludes=("exact", "other")).field()
    tolerance: float = _TOLERANCE.field()
    write_golden: str | None = text(_WRITE, "FILE", excludes=("exact", "golden", "json", "other")).field()
    json: bool = JSON.field()


def diff(options: DiffOptions) -> int:
    """
    ci-tasks diff last                          what changed since this row last passed
    ci-tasks diff RUN RUN                       the earlier one first
    ci-tasks diff RUN RUN --exact               are metrics and checkpoints equal, bit for bit?
    ci-tasks diff RUN --write-golden golden.json
    ci-tasks diff last --golden golden.json --tolerance 0.01

    Exit code 0, even if runs differ; with --exact or --golden, 1 unless all values are shown to be equal.
    """
    from ci_tasks.features.difference import values
    from ci_tasks.features.difference.compare import RunDifference, compare_runs, last_passed, one_side, text
    from ci_tasks.records import PASSED
    from ci_tasks.safe_output import terminal_width

    new = one_side(options.other or options.run)
    if options.write_golden:
        seen = values.of_lowest_rank(new.logged)
        if new.record.status != PASSED or not seen:
            problem = f"{new.record.id} is {new.record.status}, or has no metric per step in its log: no golden values"
            raise UsageError(problem, hint="`ci-tasks runs --status passed` lists runs")
        values.write_golden(user_path(options.write_golden), seen)
        print(f"{options.write_golden}: {counted(len(seen), 'metric')} of {new.record.id}")
        return 0
    result: RunDifference | values.ValuesComparison
    if options.golden:
        golden, seen = values.read_golden(user_path(options.golden)), values.of_lowest_rank(new.logged)
        result = values.compare_values(options.golden, golden, new.record.id, seen, options.tolerance)
        lines = values.text(result)
    else:
        old = one_side(options.run) if options.other else last_passed(new)
        if options.exact:
            result = values.compare_values(old.record.id, old.logged, new.record.id, new.logged)
            lines = values.text(result)
        else:
            result = compare_runs(old, new)
            lines = text(old, new, result, terminal_width())
    print_result(result, lambda: lines, as_json=options.json)
    return 0 if isinstance(result, RunDifference) else values.EXIT_CODES[result.outcome]
