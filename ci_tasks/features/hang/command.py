"""The command `hang`: what a run's agent sees now, or saw last of a run that has ended, and why it hangs."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import closing
from pathlib import Path

from ci_tasks import safe_output
from ci_tasks.agent.codec import masked_record
from ci_tasks.agent.hang import HangFacts, NoLook, facts_of, wait_for_look
from ci_tasks.agent.mask import mask_text
from ci_tasks.agent.protocol import Request
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import RemoteLocation
from ci_tasks.agent.run_directory import RunDir, read_plan, read_remote, read_status_if_readable, write_record
from ci_tasks.cli.options import BRIEF, JSON, ONE_RUN
from ci_tasks.cli.shared import print_json
from ci_tasks.errors import Blocked
from ci_tasks.features.hang.analysis import EXIT_CODES, NOT_DETERMINED, analyse_hang
from ci_tasks.records import Hang
from ci_tasks.report import brief
from ci_tasks.report.triage import hang_groups
from ci_tasks.results.load import RUNS, find_one
from ci_tasks.safe_output import terminal_width

_MOST_REASONS = 6  # of what could not be had; --json has all
_MAX_BYTES = 1 << 26  # of what a host sends


@dataclass(frozen=True)
class HangOptions:
    run: str = ONE_RUN.field()
    json: bool = JSON.field()
    brief: bool = BRIEF.field()


def hang(options: HangOptions) -> int:
    """
    ci-tasks hang last                    where each rank is, and which rank the others wait for
    ci-tasks hang last --brief            for an assistant
    ci-tasks hang last --json
    """
    id, run = find_one(options.run, RUNS)
    result, note = of_ended(run) or (analyse_hang(look_at(run)), "")
    if options.json:
        print_json(result, versioned=False)
    elif options.brief:
        print(brief.hang(result, id, note), end="")
    else:
        print("\n".join(hang_lines(result, id, run.hang_stacks, note, terminal_width())))
    return EXIT_CODES[result.outcome]


def look_at(run: RunDir) -> HangFacts:
    """What the run's agent sees of its processes now. Raises Blocked if it cannot be asked."""
    remote = read_remote(run)
    if remote is not None:
        return _look_there(run, remote)
    try:
        return wait_for_look(run.path, secrets.token_hex(8))
    except NoLook as reason:
        raise Blocked(f"no look at {run.path}: {reason}", hint="`ci-tasks runs` lists the running ones") from None


def _look_there(run: RunDir, remote: RemoteLocation) -> HangFacts:
    """The facts that the host sends, masked and stored in the run directory here."""
    from ci_tasks.hosts.connection import Receiver, RequestRefused
    from ci_tasks.hosts.runs import open_connection
    from ci_tasks.run.attach import host_of_run

    safe_output.add_secret_variables(read_plan(run).secrets)
    with tempfile.TemporaryDirectory() as directory:
        files, request = Receiver(directory, _MAX_BYTES), Request("look", remote.directory, look=secrets.token_hex(8))
        with closing(open_connection(host_of_run(remote))) as connection, closing(files):
            try:
                connection.request(request, files.take)
            except RequestRefused as refusal:
                hint = "`ci-tasks fetch` brings what was seen of a run that has ended"
                raise Blocked(refusal.message, hint=hint) from None
        there, values = RunDir(directory), safe_output.secret_values()
        if (sent := facts_of(there)) is None:
            raise Blocked(f"{remote.host} sent nothing of the run's processes that can be read")
        facts = masked_record(sent, values)
        os.makedirs(os.path.dirname(run.hang), exist_ok=True)
        write_record(run.hang, facts)
        if os.path.exists(there.hang_stacks):
            text = Path(there.hang_stacks).read_text(encoding="utf-8", errors="replace")
            Path(run.hang_stacks).write_text(mask_text(values, text), encoding="utf-8", errors="replace")
        return facts


def of_ended(run: RunDir) -> tuple[Hang, str] | None:
    """What was seen last of a run that has ended, and when that was; None of one that continues, as far as is known."""
    status = read_status_if_readable(run)
    if not status.has_ended:
        return None
    if (facts := facts_of(run)) is not None:
        return analyse_hang(facts), f"at the last look ({facts.reason}); the run has ended since"
    silence = f"; its log was silent for at most {status.longest_silence:.0f} s" if status.longest_silence else ""
    reason = f"the run has ended, and no stacks were captured{silence}"
    return Hang(NOT_DETERMINED, "", reason), "nothing; `ci-tasks report RUN` says how it ended"


def hang_lines(hang: Hang, run: str, stacks: str, note: str = "", width: int | None = None) -> list[str]:
    """The conclusion, then the place of each process, then what could not be read. `note` says of when that is."""
    lines = [f"{run}: {hang.outcome}{f', {hang.kind}' if hang.kind else ''}", f"  {hang.reason}"]
    lines += [*([f"  seen: {note}"] if note else []), "", *hang_groups(hang, width)]
    lines += [f"could not: {line}" for line in hang.could_not[:_MOST_REASONS]]
    return [*lines, *([f"all stacks: {stacks}"] if hang.groups else [])]
