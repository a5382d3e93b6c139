"""What the probe saw of a training's processes: where they imported Bridge and Megatron from, and what they raised."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ci_tasks.agent.probe.evidence import NotedException, ProcessEvidence, RunEvidence
from ci_tasks.errors import some
from ci_tasks.features.verl.judge.log_records import LoggedFailure, TrainingFacts
from ci_tasks.features.verl.levels.criterion import Criterion, contradicted, not_seen, shown
from ci_tasks.logs.causes import task_exceptions, uncaught_exceptions
from ci_tasks.logs.lines import visible

LOCAL_BRIDGE = "local Bridge in every process"
ONE_MEGATRON = "one Megatron-LM in every process"
_BRIDGE, _CORE = "megatron.bridge", "megatron.core"
_CONSTRUCTION = re.compile(r"/megatron/(?:bridge|core)/|/verl/workers/engine/megatron/|/verl/models/mcore/")
_ENDINGS = ("SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit")  # how a process is told to end
_SEE_WORKERS = "see whether the probe reached the workers: `probe` in the run's record"


def evidence_of(evidence: RunEvidence | None, facts: TrainingFacts) -> RunEvidence | None:
    """That of the processes that started while the training ran; None where nobody knows, or when that was."""
    if evidence is None or facts.began_at is None:
        return None
    until = facts.ended_at if facts.ended_at is not None else float("inf")
    begun = facts.began_at
    processes = tuple(process for process in evidence.processes if begun <= process.started_at <= until)
    return replace(evidence, processes=processes)


def import_criteria(evidence: RunEvidence | None, root: str) -> Iterator[Criterion]:
    """Whether all processes of a training imported the Bridge under `root`, and one Megatron-LM. Nothing where there is
    no evidence: then it is for the preflight to say."""
    if evidence is None or not root:
        return
    bridge = _by_directory(evidence, _BRIDGE)
    source = f"{root.rstrip('/')}/src/"
    wrong = {place: who for place, who in bridge.items() if not place.startswith(source)}
    for place, who in wrong.items():
        yield contradicted(LOCAL_BRIDGE, f"{place} is not under {source[:-1]}", _named(who), environment=True)
    if not bridge:
        yield not_seen(LOCAL_BRIDGE, "no process of the training was seen to import megatron.bridge", _SEE_WORKERS)
    elif not wrong:
        yield shown(LOCAL_BRIDGE, f"{_counted(bridge)} from {source[:-1]}", _named(next(iter(bridge.values()))))
    yield from _megatron(evidence, root)


def noted_failures(evidence: RunEvidence | None) -> Iterator[LoggedFailure]:
    """The exceptions that processes noted, whether or not anybody handled them."""
    if evidence is None:
        return
    for process, noted in (*uncaught_exceptions(evidence), *task_exceptions(evidence)):
        if noted.chain[0].type.rpartition(".")[2] not in _ENDINGS:
            yield _failure(process, noted)


def process_name(process: ProcessEvidence) -> str:
    """`rank 3 (pid 71)`."""
    return f"rank {process.rank} (pid {process.pid})" if process.rank is not None else f"pid {process.pid}"


def _megatron(evidence: RunEvidence, root: str) -> Iterator[Criterion]:
    """Of the workers: verl's wrapper puts an image's own Megatron-LM before the checkout's for the driver alone."""
    core = _by_directory(evidence, _CORE)
    workers = {place: found for place, who in core.items() if (found := _workers(who, evidence))} or core
    if len(workers) > 1:
        places = "; ".join(f"{place}: {_named(who)}" for place, who in workers.items())
        yield contradicted(ONE_MEGATRON, places, environment=True)
        return
    for place, who in workers.items():
        pinned = f"{root.rstrip('/')}/3rdparty/Megatron-LM/"
        notes = [] if place.startswith(pinned) else ["which is not the Bridge checkout's 3rdparty/Megatron-LM"]
        notes += [f"{_named(other)} has {elsewhere}" for elsewhere, other in core.items() if elsewhere != place]
        yield shown(ONE_MEGATRON, "; ".join((f"{_counted(workers)} from {place}", *notes)), _named(who))
    if not core:
        yield not_seen(ONE_MEGATRON, "no process of the training was seen to import megatron.core", _SEE_WORKERS)


def _workers(processes: list[ProcessEvidence], evidence: RunEvidence) -> list[ProcessEvidence]:
    """The ranks; where no process says its rank, all but the driver."""
    if any(process.rank is not None for process in evidence.processes):
        return [process for process in processes if process.rank is not None]
    return [process for process in processes if not any("main_ppo" in word for word in process.argv)]


def _by_directory(evidence: RunEvidence, name: str) -> dict[str, list[ProcessEvidence]]:
    """Where a package was imported from → the processes that did. What a process wrote is shown as a terminal may have
    it."""
    found: dict[str, list[ProcessEvidence]] = {}
    for process in evidence.processes:
        for module in set(process.imports):
            if module.name == name and module.origin:
                who = found.setdefault(visible(module.origin.encode("utf-8", "replace")), [])
                who.append(process) if process not in who else None
    return found


def _counted(places: dict[str, list[ProcessEvidence]]) -> str:
    count = sum(map(len, places.values()))
    return f"{count} process{'es' if count != 1 else ''}"


def _named(processes: list[ProcessEvidence]) -> str:
    return some([process_name(process) for process in processes], 3)


def _failure(process: ProcessEvidence, noted: NotedException) -> LoggedFailure:
    first = noted.chain[0]
    text = visible(f"{first.type.removeprefix('builtins.')}: {first.message}".encode("utf-8", "replace")).strip()
    inner = [frame for frame in first.frames if not frame.function.startswith(("<module>", "safe_import"))]
    return LoggedFailure(
        0,
        text[:500],
        tuple(f"{frame.file.rpartition('/')[2]}:{frame.function}" for frame in first.frames),
        construction=any(_CONSTRUCTION.search(frame.file) for frame in inner),
        process=process_name(process),
    )
