"""The command `hang`: what a run's agent sees now, or saw last of a run that has ended, and why it hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import BRIEF, JSON, ONE_RUN

if TYPE_CHECKING:
    from ci_tasks.agent.run_directory import RunDir
    from ci_tasks.records import Hang

_MOST_REASONS = 6  # of what could not be had; --json has all


@dataclass(frozen=True)
class HangOptions:
    run: str = ONE_RUN.field()
    json: bool = JSON.field()
    brief: bool = BRIEF.field()


def hang(options: HangOptions) -> int:
    """
    ci-tasks hang last                    which rank is where, and whom the others wait for
    ci-tasks hang last --brief            for an assistant
    ci-tasks hang last --json
    """
    from ci_tasks.cli.shared import print_json
    from ci_tasks.features.hang.analysis import EXIT_CODES, analyse_hang
    from ci_tasks.report import brief
    from ci_tasks.results.load import RUNS, find_one
    from ci_tasks.run.attach import look_at
    from ci_tasks.safe_output import terminal_width

    id, run = find_one(options.run, RUNS)
    result, note = of_ended(run) or (analyse_hang(look_at(run)), "")
    if options.json:
        print_json(result, versioned=False)
    elif options.brief:
        print(brief.hang(result, id, note), end="")
    else:
        print("\n".join(hang_lines(result, id, run.hang_stacks, note, terminal_width())))
    return EXIT_CODES[result.outcome]


def of_ended(run: RunDir) -> tuple[Hang, str] | None:
    """What was seen last of a run that has ended, and when that was; None of one that continues, as far as is known."""
    from ci_tasks.agent.hang.look import facts_of
    from ci_tasks.agent.run_directory import read_status_if_readable
    from ci_tasks.features.hang.analysis import NOT_DETERMINED, analyse_hang
    from ci_tasks.records import Hang

    status = read_status_if_readable(run)
    if not status.has_ended:
        return None
    if (facts := facts_of(run)) is not None:
        return analyse_hang(facts), f"at the last look ({facts.reason}); the run has ended since"
    silence = f"; its log was silent for at most {status.longest_silence:.0f} s" if status.longest_silence else ""
    reason = f"the run has ended, and no stacks were captured{silence}"
    return Hang(NOT_DETERMINED, "", reason), "nothing, the run has ended"


def hang_lines(hang: Hang, run: str, stacks: str, note: str = "", width: int | None = None) -> list[str]:
    """The conclusion, then who is where, then what could not be had. `note` says of when that is."""
    from ci_tasks.report.triage import hang_groups

    lines = [f"{run}: {hang.outcome}{f', {hang.kind}' if hang.kind else ''}", f"  {hang.reason}"]
    lines += [*([f"  seen: {note}"] if note else []), "", *hang_groups(hang, width)]
    lines += [f"could not: {line}" for line in hang.could_not[:_MOST_REASONS]]
    return [*lines, *([f"all stacks: {stacks}"] if hang.groups else [])]
