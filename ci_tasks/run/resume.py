"""Coming back to a command that was left: its rows that ended keep their records, its rows that run are watched, and
the others wait for a host again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ci_tasks.agent.run_directory import RunDir, read_plan, read_remote, read_status
from ci_tasks.errors import UsageError
from ci_tasks.hosts.executor import PreparedRow
from ci_tasks.results.runs import is_over, load_record, read_run_record, seconds_since_start
from ci_tasks.run.host_sessions import HostSession
from ci_tasks.run.journal import BatchJournal, JournalEntry
from ci_tasks.run.prepare import PreparedBatch
from ci_tasks.run.row_execution import RowExecution


def check_same_tree(journal: BatchJournal, tree: str) -> None:
    """All rows of a command run one tree. Raises UsageError where the checkout is another by now."""
    if journal.tree != tree:
        raise UsageError(
            f"the checkout is not what {journal.batch.id} runs: tree {journal.tree[:12]} then, {tree[:12]} now",
            hint="put it back as it was (git stash), or run the label anew; `--last-failed` takes what did not pass",
        )


def restore_executions(
    journal: BatchJournal, executions: Sequence[RowExecution], ready: PreparedBatch, say: Callable[[str], None]
) -> None:
    """Put each row where it stands."""
    sessions = {session.name: session for session in ready.sessions}
    ended = watched = 0
    for execution in executions:
        # What never left this machine was begun anew under the same number.
        attempts = list({entry.number: entry for entry in journal.entries if entry.row == execution.row.row}.values())
        for earlier in attempts[:-1]:
            _add_earlier_attempt(execution, ready.batch.run_dir(earlier.number))
        if not attempts:
            continue
        last, run = attempts[-1], ready.batch.run_dir(attempts[-1].number)
        if read_run_record(run) or (_has_started(run) and is_over(run)):
            execution.finish(load_record(run), run)
            ended += 1
        elif _has_started(run):
            _rejoin(execution, run, last, sessions)
            watched += 1
    waiting = len(executions) - ended - watched
    say(f"resuming {journal.batch.id}: {ended} ended, {watched} still running, {waiting} to be started")


def _has_started(run: RunDir) -> bool:
    """Whether a host may have heard of the run; one that never left this machine is begun anew."""
    return read_status(run).exists or read_remote(run) is not None


def _add_earlier_attempt(execution: RowExecution, run: RunDir) -> None:
    record = read_run_record(run)
    if record is not None:
        execution.earlier += record.attempts[-1:]


def _rejoin(execution: RowExecution, run: RunDir, begun: JournalEntry, sessions: dict[str, HostSession]) -> None:
    session = sessions.get(begun.host)
    if session is None:
        raise UsageError(
            f"{execution.row.row} runs on {begun.host}, which --host does not name", hint=f"add {begun.host} to --host"
        )
    execution.prepared, execution.session, execution.is_resumed = _prepared_row(execution, run), session, True
    execution.started_at = time.monotonic() - (seconds_since_start(run) or 0.0)
    session.executor.reattach(execution.prepared)


def _prepared_row(execution: RowExecution, run: RunDir) -> PreparedRow:
    """The attempt as it was planned."""
    return PreparedRow(row=execution.row, plan=read_plan(run), run=run, setup=None)
