"""The command `diff`."""

from __future__ import annotations

from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import JSON, ONE_RUN, Option, positional, switch, text
from ci_tasks.cli.shared import print_json
from ci_tasks.errors import UsageError, counted
from ci_tasks.resources import user_path

_ONE_RUN = (("other", "one run is compared with the file, or written to it", "name one run"),)


@dataclass(frozen=True)
class DiffOptions:
    run: str = replace(ONE_RUN, help="a run's id or prefix").field()
    other: str | None = positional(
        "the run that is asked about, if RUN is the earlier one (default: RUN, with its row's last that passed)",
        required=False,
    ).field()
    exact: bool = switch(
        "whether metrics and checkpoint hashes in both logs are equal, bit for bit; exit code 1 if not"
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
        unit="parts of the file's value",
        needs="golden",
        hint="for example --tolerance 0.01, which is 1 %",
    ).field()
    write_golden: str | None = text(
        "write the metrics of RUN, which passed, as golden values",
        "FILE",
        excludes=(*((name, "it only writes the file", "") for name in ("exact", "golden", "json")), *_ONE_RUN),
    ).field()
    json: bool = JSON.field()


def diff(options: DiffOptions) -> int:
    """
    ci-tasks diff last                          what changed since this row last passed
    ci-tasks diff RUN RUN                       the earlier one first
    ci-tasks diff RUN RUN --exact               are metrics and checkpoints equal, bit for bit?
    ci-tasks diff RUN --write-golden golden.json
    ci-tasks diff last --golden golden.json --tolerance 0.01

    Exit code 0 whatever differs; with --exact and --golden 1 unless all of it is shown to be equal.
    """
    from ci_tasks.agent.codec import encode
    from ci_tasks.features.difference import values
    from ci_tasks.features.difference.compare import compare_runs, text
    from ci_tasks.features.difference.runs import last_passed, one_side
    from ci_tasks.safe_output import terminal_width

    if options.write_golden:
        return _write_golden(options.run, options.write_golden)
    new = one_side(options.other or options.run)
    if options.golden:
        golden, seen = values.read_golden(user_path(options.golden)), values.of_lowest_rank(new.logged)
        compared = values.compare_values(options.golden, golden, new.record.id, seen, options.tolerance)
    else:
        old = one_side(options.run) if options.other else last_passed(new)
        if not options.exact:
            difference = compare_runs(old, new)
            if options.json:
                print_json(encode(difference, versioned=False))
            else:
                print("\n".join(text(old, new, difference, terminal_width())))
            return 0
        compared = values.compare_values(old.record.id, old.logged, new.record.id, new.logged)
    if options.json:
        print_json(encode(compared, versioned=False))
    else:
        print("\n".join(values.text(compared)))
    return values.EXIT_CODES[compared.outcome]


def _write_golden(run: str, file: str) -> int:
    from ci_tasks.features.difference import values
    from ci_tasks.features.difference.runs import one_side
    from ci_tasks.records import PASSED

    side = one_side(run)
    seen = values.of_lowest_rank(side.logged)
    if side.record.status != PASSED or not seen:
        problem = f"{side.record.id} is {side.record.status}, or has no metric by step in its log: no golden values"
        raise UsageError(problem, hint="`ci-tasks runs --status passed` lists runs")
    values.write_golden(user_path(file), seen)
    print(f"{file}: {counted(len(seen), 'metric')} of {side.record.id}")
    return 0
