"""From what was seen of a run's processes to why it hangs: the first rule that finds something, and who stands where.
Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone

from ci_tasks.agent.hang.facts import HangFacts
from ci_tasks.features.hang import waits
from ci_tasks.features.hang.processes import Process, RunProcesses, Thread, names
from ci_tasks.features.hang.rules import CONTRADICTED, NOT_DETERMINED, RULES, SHOWN, Finding
from ci_tasks.records import Hang, HangCulprit, HangGroup

EXIT_CODES = {SHOWN: 0, CONTRADICTED: 1, NOT_DETERMINED: 4}
_MAX_GROUPS, _MAX_FRAMES, _MAX_REASONS = 40, 12, 100


def analyse_hang(facts: HangFacts) -> Hang:
    run = RunProcesses(facts)
    groups = tuple(_groups(run))[:_MAX_GROUPS]
    found = next((finding for rule in RULES if (finding := rule(run))), None)
    if found is None:
        seen = "; ".join(f"{group.who}: {group.where}" for group in groups[:3]) or "no process was seen"
        found = Finding("", f"not determined; {seen}", outcome=NOT_DETERMINED)
    return Hang(
        outcome=found.outcome,
        kind=found.kind,
        reason=found.reason,
        culprits=(*found.gone, *map(_culprit, found.culprits)),
        groups=groups,
        could_not=facts.could_not[:_MAX_REASONS],
        taken_at=_iso(facts.taken_at),
        seconds=facts.seconds,
        trigger=facts.reason,
    )


def _groups(run: RunProcesses) -> Iterator[HangGroup]:
    """Processes with equal stacks of the main thread, ranks first and the largest group first."""
    found: dict[tuple[object, ...], list[Process]] = {}
    for process in run.by_id.values():
        found.setdefault((process.rank is None, *_stack_key(process.main)), []).append(process)
    for key, group in sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]), item[1][0].id)):
        frames = tuple(f"{f.function} {f.file}:{f.line}" for f in group[0].main.stack.frames[:_MAX_FRAMES])
        are_named = key[0] is False or len(group) <= 4
        who = names(group) if are_named else f"{len(group)} processes {group[0].program}"
        yield HangGroup(who, group[0].main.where, frames, len(group))


def _stack_key(main: Thread) -> tuple[object, ...]:
    if not main.stack.frames:
        return (main.process.program, main.process.facts.state, main.wait.kind)
    own = tuple((f.function, f.file, f.line) for f in main.stack.frames if not waits.is_library(f))
    return (main.wait.kind, main.wait.call, own)


def _culprit(thread: Thread) -> HangCulprit:
    process = thread.process
    culprit = HangCulprit(process.name, thread.does, process.facts.pid, process.rank)
    frame = thread.wait.frame
    return replace(culprit, function=frame.function, file=frame.file, line=frame.line) if frame else culprit


def _iso(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds") if seconds > 0 else None
    except (OverflowError, ValueError, OSError):
        return None
