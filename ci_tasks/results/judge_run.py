"""What an ended run shows, put together from its directory: its record. `verdict` decides, this reads."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks import registry, safe_output
from ci_tasks.agent import run_directory
from ci_tasks.agent.evidence import collect_left_evidence
from ci_tasks.agent.files import content_of, pieces_of
from ci_tasks.agent.finish import ARCHIVE, left_out_files, mask_run
from ci_tasks.agent.hang import HangFacts
from ci_tasks.agent.nvidia_smi import read_gpu_samples
from ci_tasks.agent.records import (
    Deviation,
    DockerInvocation,
    DockerInvocations,
    Environment,
    Event,
    GpuSample,
    RunDescription,
    Status,
)
from ci_tasks.agent.run_directory import RunDir, read_description, read_if_readable, read_plan, read_remote
from ci_tasks.errors import Blocked, some
from ci_tasks.logs.causes import TIMEOUT_HANG, UNKNOWN, JobEnd, JobKnowledge, group_of
from ci_tasks.logs.reading import LogFacts
from ci_tasks.records import BLOCKED, FAILED, PASSED, VACUOUS, Hang, RunRecord, Triage, Verdict
from ci_tasks.results import probe_evidence
from ci_tasks.results.gpu_samples import OUT_OF_MEMORY, gpu_use, since
from ci_tasks.results.runs import events_of, new_record, queue_seconds, read_run_log, save_record
from ci_tasks.results.verdict import collect_evidence, ended_as, judge, needs_triage, read_junit

if TYPE_CHECKING:
    from ci_tasks.logs.triage.candidate_reader import CandidateReader

_ROOTS = ("", "src", "python")  # of a checkout, where projects have their packages
_MOST_PASSED = 3  # logs of runs that passed, with which one that failed is compared
_MOST_NAMED = 10  # withheld artifacts; left-out.json has them all
_LARGEST_SAMPLES = 1 << 23
_NO_DAEMON = "containers may be left: "
HangAnalysis = Callable[[HangFacts], Hang]
"""Why a run hangs: what was seen of its processes."""


def judge_run(run: RunDir) -> RunRecord:
    """Judge an ended run, write its record.json and return it."""
    _mask_leftovers(run)
    plan, status, events = read_description(run), run_directory.read_status(run), events_of(run)
    error, log_error = status.error or "", status.log_error or ""
    invocations = read_if_readable(DockerInvocations, run.docker)
    calls = invocations.calls if invocations else ()
    cut = _why_cut(status, events, calls)
    ended = JobEnd(status.end, status.exit_code, error, plan.timeout_minutes, log_error, status.oom_kills, cut)
    facts, triage = _read_log(run, ended, plan)
    junit = read_junit(pieces_of(run.junit))
    evidence = collect_evidence(junit, facts, defines_tests=plan.defines_tests, takes_locks=plan.takes_locks)
    contained = any(call.runtime in ("docker", "podman") for call in calls)
    verdict = judge(ended, evidence, facts, test=plan.test, containers=contained, triage=triage)
    if verdict.status == PASSED and events and not any(event.event == "step" for event in events):
        verdict = Verdict(VACUOUS, "nothing ran: the job skipped each of its steps", evidence)
    around = read_if_readable(Environment, run.environment) or Environment()
    record = new_record(plan, status, verdict, facts.gpu_ids or (), calls, around, queue_seconds(events))
    record = replace(
        record,
        metrics={name: value if math.isfinite(value) else str(value) for name, value in facts.values.items()},
        triage=triage if verdict.status != PASSED else None,
        deviations=(*record.deviations, *_of_install_steps(events), *_withheld(run)),
    )
    if record.status == FAILED and record.cause == "file_not_found" and (missing := _empty_submodule(record)):
        record = ended_as(record, BLOCKED, f"{record.reason}; `git submodule update --init {missing}` fetches it")
    record = _with_probe(record, run, plan, calls)
    if status.end == "timeout" or status.stalled:
        record = _with_hang(record, run)
    return save_record(run, _with_gpu_use(record, run, status.ended_at, events))


def _empty_submodule(record: RunRecord) -> str:
    """The submodule that the checkout has not fetched, and of which the row says that a file is missing."""
    checkout = Path(record.checkout.path) if record.checkout else Path()
    listed = re.findall(rb"(?m)^\s*path = ([^\0\n]+)$", b"".join(pieces_of(str(checkout / ".gitmodules"))))
    paths = [path for path in map(os.fsdecode, listed) if f"{path}/" in record.reason]
    return next((path for path in paths if not any((checkout / path).glob("*"))), "")


def _why_cut(status: Status, events: Sequence[Event], calls: Sequence[DockerInvocation]) -> str:
    """Why the end of the run says nothing of its job, whose container never began or ended with its daemon."""
    last = next((event for event in reversed(events) if event.event in ("pull", "container")), None)
    may_have_ended = calls and calls[-1].ci[1:2] == ("pull",)
    if status.end == "timeout" and last and last.event == "pull" and not may_have_ended:
        return f"docker was still pulling {last.image} at the timeout"
    is_killed = status.end == "exit" and status.exit_code in (137, 143)
    return next((line for line in status.left if is_killed and line.startswith(_NO_DAEMON)), "")


def _mask_leftovers(run: RunDir) -> None:
    """Mask what an agent of this machine that died could not. What came from a host was masked when it came."""
    plan = read_plan(run)
    safe_output.add_secret_variables(plan.secrets)
    collect_left_evidence(run)
    if not run_directory.read_status(run).masked and read_remote(run) is None:
        mask_run(run, safe_output.secret_values(), has_secrets=bool(run_directory.given_secrets(plan)))


def _of_install_steps(events: Sequence[Event]) -> list[Deviation]:
    """What the row had of the install steps that other runs, or other rows of its command, share with it."""
    again = "shared by runs with the same install steps; --fresh-env installs them again"
    changed = "another row of the command changed the shared packages; run this row alone"
    texts = {"packages": ("resolved in each run", again), "changed": ("created for each job", changed)}
    said = dict.fromkeys((*event.event.partition(" ")[::2], event.name or "") for event in events)
    return [Deviation(of or kind, texts[kind][0], here, texts[kind][1]) for kind, of, here in said if kind in texts]


def _withheld(run: RunDir) -> list[Deviation]:
    names = [file.path for file in left_out_files(run.artifacts).files if file.why == ARCHIVE]
    here = f"withheld: {some(names, _MOST_NAMED)}"
    return [Deviation("artifacts", "uploaded unchanged", here, f"the run has secrets: {ARCHIVE}")] if names else []


def _with_probe(record: RunRecord, run: RunDir, plan: RunDescription, calls: Sequence[DockerInvocation]) -> RunRecord:
    """What the probe saw: the test's interpreter, a summary, packages from elsewhere, and whose overlays ran."""
    evidence, given = probe_evidence.read_run_evidence(run), read_plan(run)
    environment = probe_evidence.with_imports(record.environment, evidence, plan.test)
    record = replace(record, environment=environment, probe=probe_evidence.probe_summary(evidence, plan, calls))
    if given.probe is not None and evidence is not None:
        elsewhere = probe_evidence.imported_elsewhere(evidence, given.probe.own, given.workspace, calls)
        record = replace(record, deviations=(*record.deviations, *elsewhere))
    return probe_evidence.with_overlay_uses(record, evidence, given.probe.overlays if given.probe else ())


def _with_hang(record: RunRecord, run: RunDir) -> RunRecord:
    """The record of a run that ended silently, or at its timeout, with why its processes hung when they were last
    looked at, if a feature says it. What was not shown is no reason."""
    analysis: HangAnalysis | None = registry.hook("hang_analysis")
    facts = read_if_readable(HangFacts, run.hang) if analysis else None
    if analysis is None or facts is None or record.status == PASSED or not record.attempts:
        return record
    hang = analysis(facts)
    record, triage = replace(record, hang=hang), record.triage
    if hang.outcome != "shown":
        return record
    if triage is not None and triage.cause in (UNKNOWN, TIMEOUT_HANG):
        triage = replace(triage, cause=TIMEOUT_HANG, group=group_of(TIMEOUT_HANG), reason=hang.reason)
    reason = f"{record.reason.partition('; last line: ')[0]}: {hang.reason}"
    return replace(ended_as(record, record.status, reason), triage=triage)


def _with_gpu_use(record: RunRecord, run: RunDir, ended_at: float | None, events: Sequence[Event]) -> RunRecord:
    """The record with what its GPUs did from the moment at which it had their locks. Who else held their memory is a
    difference from CI, and explains a row that ran out of it."""
    use = gpu_use(
        since(gpu_samples(run), max((event.t for event in events if event.event == "gpus"), default=0.0)),
        uuids={uuid for attempt in record.attempts[-1:] for uuid in attempt.gpu_uuids},
        ids=record.gpu_ids,
        ended_at=ended_at,
        out_of_memory=record.cause in OUT_OF_MEMORY,
    )
    if use is None:
        return record
    held = ("memory of its GPUs", "locked for the row", "held by others, too")
    others = [Deviation(*held, sentence) for sentence in use.strangers]
    reason = "; ".join(filter(None, [record.reason, use.fullest]))
    return replace(record, gpu_use=use, deviations=(*record.deviations, *others), reason=reason)


def gpu_samples(run: RunDir) -> list[GpuSample]:
    """The rows of gpu.csv; none if there is no such file."""
    return read_gpu_samples(content_of(run.gpu_samples, _LARGEST_SAMPLES).decode("utf-8", "replace"))


def _read_log(run: RunDir, ended: JobEnd, plan: RunDescription) -> tuple[LogFacts, Triage | None]:
    """What the log says and, if the run failed, why: the log is read once."""
    if not needs_triage(ended):
        return read_run_log(run.log).facts, None
    from ci_tasks.logs.triage.candidate_reader import CandidateReader
    from ci_tasks.logs.triage.rules import shipped

    candidates = CandidateReader(shipped())
    return read_run_log(run.log, candidates).facts, log_triage(run, ended, plan, candidates)


def log_triage(
    run: RunDir, ended: JobEnd, plan: RunDescription | None = None, candidates: CandidateReader | None = None
) -> Triage:
    """Why a run ended so, as far as its log, its processes and the last runs that passed say. `candidates` come from
    its log, if that was read."""
    from ci_tasks.logs.triage.log_triage import analyse  # commands that only look load none of it

    passed: Sequence[RunDir] = ()
    with suppress(Blocked):  # a Python that was built without SQLite
        from ci_tasks.results.index import passed_runs

        passed = passed_runs(plan.label, plan.row, _MOST_PASSED) if plan else ()
    is_own = modules_lacking(plan.checkout.path if plan else "")
    logs = [pieces_of(earlier.log) for earlier in passed]
    known = JobKnowledge(probe_evidence.read_run_evidence(run), logs, is_own)
    return analyse(candidates or pieces_of(run.log), ended, known)


def modules_lacking(checkout: str) -> Callable[[str], bool]:
    """Which modules are the checkout's own, and missing there: it has the package around the module, and not it."""
    roots = [Path(checkout, root) for root in _ROOTS if checkout]

    def is_own(module: str) -> bool:
        above, _, name = module.rpartition(".")
        packages = [root.joinpath(*above.split(".")) for root in roots if above]
        there = [package for package in packages if (package / name).is_dir() or (package / f"{name}.py").is_file()]
        return any(map(Path.is_dir, packages)) and not there

    return is_own
