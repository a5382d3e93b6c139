"""The command `diff`."""

from __future__ import annotations

from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import JSON, ONE_RUN, REPO, positional, switch
from ci_tasks.cli.output import print_json

_RUN = replace(ONE_RUN, help="a run's id or prefix, a record.json, a log of CI, or `last-passed`")


@dataclass(frozen=True)
class DiffOptions:
    run: str = _RUN.field()
    other: str | None = positional(
        "the run that is asked about, where RUN is the earlier one (else RUN, with its row's last that passed)",
        required=False,
    ).field()
    repo: str | None = REPO.field(help="where the commits of both are (else where the runs took them from)")
    markdown: bool = switch("print markdown").field()
    json: bool = JSON.field(excludes=(("markdown", "both would be on standard output", ""),))


def diff(options: DiffOptions) -> int:
    """
    ci-tasks diff last                          what changed since this row last passed
    ci-tasks diff RUN RUN                       the earlier one first
    ci-tasks diff ci.log last --markdown
    ci-tasks diff record.json last --json

    Exit code 0 whatever differs.
    """
    from ci_tasks.agent.codec import encode
    from ci_tasks.features.difference import report
    from ci_tasks.features.difference.diff_runs import diff_runs
    from ci_tasks.safe_output import terminal_width

    compared = diff_runs(options.run, options.other, options.repo)
    if options.json:
        print_json(encode(compared.difference, versioned=False))
    elif options.markdown:
        print("\n".join(report.markdown(compared)))
    else:
        print("\n".join(report.text(compared, terminal_width())))
    return 0
