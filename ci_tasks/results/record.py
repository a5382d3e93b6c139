"""record.json: what is known of a run after its end, put together from its directory. The judge decides, this reads."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from ci_tasks import known_secrets
from ci_tasks.agent import liveness
from ci_tasks.agent.cleanup.lost_run import conclude
from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.exit_gate import mask_run, masked_record
from ci_tasks.agent.files import content_of, open_file, pieces_of, read_file
from ci_tasks.agent.probe.evidence import collect_left_evidence
from ci_tasks.agent.records import (
    Deviation,
    DockerInvocation,
    DockerInvocations,
    Environment,
    Event,
    GpuSample,
    RemoteLocation,
    RunDescription,
    SlurmAllocation,
    Status,
    read_events,
    read_gpu_samples,
)
from ci_tasks.agent.run_directory import (
    END_EXIT,
    END_TIMEOUT,
    RunDir,
    read_description,
    read_plan,
    read_record,
    read_remote,
    read_status,
    read_status_if_readable,
    write_record,
)
from ci_tasks.errors import Blocked
from ci_tasks.records import (
    FAILED,
    LOST,
    NO_EVIDENCE,
    PASSED,
    PLANNED,
    RUNNING,
    WAITING,
    Attempt,
    Evidence,
    GpuUse,
    Hang,
    LogDigest,
    RunEnvironment,
    RunRecord,
    Timings,
    Triage,
    Verdict,
)
from ci_tasks.results.analysis import JobKnowledge, analyse, hang_of, passed_marks
from ci_tasks.results.batch_state import BatchState, read_state_if_readable
from ci_tasks.results.clock import clock_ahead, local_events, local_status
from ci_tasks.results.gpu_samples import OUT_OF_MEMORY, by_clock, gpu_use
from ci_tasks.results.junit import Junit, read_junit
from ci_tasks.results.log_facts import LogFacts, read_log
from ci_tasks.results.overlay_evidence import with_overlay_uses
from ci_tasks.results.probe_evidence import probe_summary, read_run_evidence, with_imports
from ci_tasks.results.triage import TIMEOUT_HANG, UNKNOWN, group_of
from ci_tasks.results.verdict import JobEnd, collect_evidence, judge, needs_triage
from ci_tasks.results.waits import queue_seconds

_CI_GOES_ON = "; CI's run would not fail (continue-on-error)"
_LONGEST_LINE = 1 << 16
_MOST_PASSED = 3  # logs of runs that passed, with which one that failed is compared
_LARGEST_EVENTS = 1 << 22  # bytes; the job can write there too
_LARGEST_SAMPLES = 1 << 23
_LARGEST_JUNIT = 1 << 28  # what is cut off here is no XML any more, so the log has to do


def judge_run(run: RunDir) -> RunRecord:
    """Judge an ended run, write its record.json and return it."""
    _mask_leftovers(run)
    plan, status = read_description(run), local_status(run)
    facts = log_facts(run)
    evidence = collect_evidence(_junit(run), facts, plan.entry_point)
    if evidence.kind in ("script", "none") and status.exit_code and plan.takes_locks and not facts.gpu_ids:
        evidence = Evidence("set-up")
    calls = _container_calls(run)
    ended = JobEnd(
        end=status.end,
        exit_code=status.exit_code,
        error=status.error or "",
        timeout_minutes=plan.timeout_minutes,
        log_error=status.log_error or "",
    )
    triage = log_triage(run, ended, plan) if needs_triage(ended) else None
    contained = any(call.runtime in ("docker", "podman") for call in calls)
    verdict = judge(ended, evidence, facts, test=plan.test, containers=contained, triage=triage)
    events = events_of(run)
    record = _record(plan, status, verdict, facts, calls, _environment(run), queue_seconds(events))
    record = replace(record, deviations=(*record.deviations, *_packages_used_again(events)))
    record = replace(record, triage=triage if verdict.status != PASSED else None)
    record = _with_evidence(record, run, plan, calls)
    record = _with_hang(record, hang_of(run)) if status.end == END_TIMEOUT or status.stalled else record
    record = _with_gpu_use(record, read_gpu_use(run, record, status.ended_at))
    return _write_record(run, _with_marks(record, run) if record.status == PASSED else record)


def _with_marks(record: RunRecord, run: RunDir) -> RunRecord:
    marks = passed_marks(run, record)
    if not marks:
        return record
    more = f", and {len(marks) - 1} more" if len(marks) > 1 else ""
    return replace(record, marks=marks, reason=f"but {marks[0]}{more}")


def _with_hang(record: RunRecord, hang: Hang | None) -> RunRecord:
    """The record of a run that ended silently, or at its timeout, with why. What was not shown is no reason."""
    if hang is None or record.status == PASSED or not record.attempts:
        return record
    record = replace(record, hang=hang)
    if hang.outcome != "shown":
        return record
    reason = f"{record.reason.partition('; last line: ')[0]}: {hang.reason}"
    attempts = (*record.attempts[:-1], replace(record.attempts[-1], reason=reason))
    triage = record.triage
    if triage is not None and triage.cause in (UNKNOWN, TIMEOUT_HANG):
        triage = replace(triage, cause=TIMEOUT_HANG, group=group_of(TIMEOUT_HANG), reason=hang.reason)
    return replace(record, reason=reason, attempts=attempts, triage=triage)


def _with_evidence(
    record: RunRecord, run: RunDir, plan: RunDescription, calls: Sequence[DockerInvocation]
) -> RunRecord:
    evidence = read_run_evidence(run)
    environment = with_imports(record.environment, evidence, plan.test)
    record = replace(record, environment=environment, probe=probe_summary(evidence, plan, calls))
    probe = read_plan(run).probe
    overlays = record.checkout.overlays if record.checkout else ()
    built = {overlay.name: text for overlay in overlays if (text := _built_files(run, overlay.name)) is not None}
    return with_overlay_uses(record, evidence, probe.overlays if probe else (), built)


def _built_files(run: RunDir, overlay: str) -> str | None:
    name = os.path.basename(overlay)  # of a run that another client began, its host says the name
    try:
        text = read_file(os.path.join(run.artifacts, "builds", f"{name}.sha256"), _LARGEST_EVENTS)
    except OSError:
        return None
    return text.decode("utf-8", "replace")


def _mask_leftovers(run: RunDir) -> None:
    """Mask what an agent of this machine that died could not. What came from a host was masked when it came."""
    known_secrets.add_variables(read_plan(run).secrets)
    collect_left_evidence(run, known_secrets.values())
    if not read_status(run).masked and read_remote(run) is None:
        old = mask_run(run, known_secrets.values())
        if old:
            shutil.rmtree(old, ignore_errors=True)


def record_not_started(run: RunDir, status: str, reason: str) -> RunRecord:
    """The record of a run that never began: blocked, or cancelled while it waited."""
    return _write_record(run, _record(read_description(run), Status(), Verdict(status, reason, NO_EVIDENCE)))


def record_without_file(run: RunDir, batch: BatchState | None) -> RunRecord:
    """What can be said of a run that has no record.json; of one that has ended, its record, which is written. `batch`
    is the state of its command as it was before record.json was looked for."""
    remote = read_remote(run)
    status = local_status(run) if remote else conclude(run)
    if status.exists and is_over(run):
        return judge_run(run)
    plan = read_description(run)
    if status.exists:
        return _record(plan, status, Verdict(WAITING if status.phase == "waiting" else RUNNING, "", NO_EVIDENCE))
    return _record(plan, status, _not_started(batch, remote))


def _not_started(batch: BatchState | None, remote: RemoteLocation | None) -> Verdict:
    """How a run stands that has neither a record nor, as far as is known here, an agent."""
    if batch is not None and batch.is_active:
        return Verdict(WAITING if batch.phase == "running" else batch.phase, "", NO_EVIDENCE)
    if remote is not None and not remote.complete:
        why = f"whether it began on {remote.host} is not known here: `ci-tasks attach` asks"
        return Verdict(WAITING, why, NO_EVIDENCE)
    if batch is None:
        return Verdict(PLANNED, "", NO_EVIDENCE)
    return Verdict(LOST, batch.why_not_started, NO_EVIDENCE)


def is_over(run: RunDir) -> bool:
    """Whether the run has ended, and all of it is here: one of another host may have ended with its log still there."""
    remote = read_remote(run)
    if remote is not None:
        return remote.complete
    status = read_status_if_readable(run)
    return not liveness.is_alive(run, status) and (status.exists or not pending_phase(run))


def pending_phase(run: RunDir) -> str:
    """Of a run that has not begun, what the command does that may begin it; empty where none will."""
    batch = read_state_if_readable(os.path.dirname(run.path))
    is_pending = batch is not None and batch.is_active and not os.path.exists(run.record)
    return batch.phase if batch is not None and is_pending else ""


def with_status(run: RunDir, record: RunRecord, status: str, reason: str) -> RunRecord:
    """The record with another status, on disk too: other rows have shown what this one alone could not."""
    *earlier, last = record.attempts
    attempts = (*earlier, replace(last, status=status, reason=reason))
    return _write_record(run, replace(record, status=status, reason=reason, attempts=attempts))


def with_attempts(run: RunDir, record: RunRecord, earlier: Sequence[Attempt], *, stopped: bool) -> RunRecord:
    if not earlier and not stopped:
        return record
    return _write_record(run, replace(record, attempts=(*earlier, *record.attempts[-1:]), stopped=stopped))


def _write_record(run: RunDir, record: RunRecord) -> RunRecord:
    """Write record.json, which is the truth, and then tell the history, which may fail."""
    record = masked_record(record, known_secrets.values())
    write_record(run.record, record)
    try:
        from ci_tasks.results.history.writer import add_run
    except Blocked:  # a Python that was built without SQLite
        return record
    add_run(run, record)
    return record


def _record(
    plan: RunDescription,
    status: Status,
    verdict: Verdict,
    facts: LogFacts = LogFacts(),
    calls: Sequence[DockerInvocation] = (),
    environment: Environment = Environment(),
    queued: float | None = None,
) -> RunRecord:
    started, ended = status.started_at, status.ended_at
    observed = [item for call in calls for item in call.deviations]
    # What the adapter saw happen replaces what the plan foresaw under the same name.
    foreseen = [item for item in plan.deviations if item.what not in {other.what for other in observed}]
    gpu_ids = facts.gpu_ids or status.gpu_ids or ()
    uuids = tuple(gpu.uuid for gpu in environment.gpus if gpu.uuid and gpu.index in gpu_ids)
    around = RunEnvironment(**vars(environment), runtime=plan.runtime or None, image=plan.image)
    slurm = status.slurm or SlurmAllocation()
    attempt = Attempt(
        id=plan.id,
        host=plan.host or None,
        status=verdict.status,
        reason=verdict.reason,
        left=status.left,
        slurm_job_id=slurm.job,
        node=slurm.node,
        gpu_ids=gpu_ids,
        gpu_uuids=uuids or status.gpu_uuids,
        queue_seconds=queued if status.slurm is None else status.queue_seconds,
        image_digest=around.digest,
        driver=environment.driver,
        started_at=_iso(started),
        ended_at=_iso(ended),
    )
    return RunRecord(
        id=plan.id,
        label=plan.label,
        row=plan.row,
        host=plan.host or None,
        status=verdict.status,
        reason=verdict.reason + (_CI_GOES_ON if plan.may_fail and verdict.status == FAILED else ""),
        may_fail=plan.may_fail,
        retry_of=plan.retry_of,
        exit_code=status.exit_code,
        started_at=_iso(started),
        ended_at=_iso(ended),
        timings=Timings(
            round(ended - started, 3) if started and ended else None, queued, status.longest_silence or None
        ),
        checkout=plan.checkout if plan.checkout.path else None,
        gpus=plan.gpus,
        gpu_ids=gpu_ids,
        log=LogDigest(status.log_bytes, status.log_sha256),
        evidence=verdict.evidence,
        metrics={name: value if math.isfinite(value) else str(value) for name, value in facts.values.items()},
        deviations=tuple(dict.fromkeys([*foreseen, *observed, *_changed_files(status), *_slurm_exit_code(status)])),
        environment=around,
        left=status.left,
        attempts=(attempt,),
    )


def _changed_files(status: Status) -> list[Deviation]:
    """What the job, or somebody else, changed that only the agent writes."""
    if not status.changed:
        return []
    kept = ", but the log could not be" if "log" in status.changed else ""
    why = f"a job here is the same user as its agent; what the agent wrote was restored{kept}"
    return [Deviation("files of the run", "out of the job's reach", f"changed: {', '.join(status.changed)}", why)]


def _slurm_exit_code(status: Status) -> list[Deviation]:
    """Where the exit code that status.json has is not the one that Slurm saw."""
    slurm = status.slurm
    if slurm is None:
        return []
    if slurm.claimed is not None:
        why = f"Slurm saw exit code {slurm.exit_code}, which counts; a job is the same user as its agent"
        return [Deviation("status.json", "out of the job's reach", f"says exit code {slurm.claimed}", why)]
    if slurm.exit_code is None and status.end == END_EXIT:
        why = f"squeue, sacct and the completion log do not know job {slurm.job} any more"
        return [Deviation("exit code", "told by the runner", "not verified by Slurm", why)]
    return []


def _packages_used_again(events: Sequence[Event]) -> list[Deviation]:
    names = dict.fromkeys(event.name for event in events if event.event == "packages" and event.name)
    why = "shared by runs with the same install steps; --fresh-env installs them anew"
    return [Deviation("packages", "resolved anew in each run", name, why) for name in names]


def read_gpu_use(run: RunDir, record: RunRecord, ended_at: float | None) -> GpuUse | None:
    """What gpu.jsonl shows of the run's GPUs; None where there is none, or it has nothing of them."""
    uuids = {uuid for attempt in record.attempts[-1:] for uuid in attempt.gpu_uuids}
    out_of_memory = record.cause in OUT_OF_MEMORY
    samples = gpu_samples(run)
    return gpu_use(samples, uuids=uuids, ids=record.gpu_ids, ended_at=ended_at, out_of_memory=out_of_memory)


def gpu_samples(run: RunDir) -> list[GpuSample]:
    """The lines of gpu.jsonl, by our clock; none where there is no such file."""
    text = content_of(run.gpu_samples, _LARGEST_SAMPLES).decode("utf-8", "replace")
    return by_clock(read_gpu_samples(text), clock_ahead(run))


def _with_gpu_use(record: RunRecord, use: GpuUse | None) -> RunRecord:
    """The record with what its GPUs did. Who else held their memory is a difference from CI, and explains a row that
    ran out of it."""
    if use is None:
        return record
    held = "held by others, too"
    others = [Deviation("memory of its GPUs", "locked for the row", held, sentence) for sentence in use.strangers]
    reason = "; ".join(filter(None, [record.reason, use.fullest]))
    return replace(record, gpu_use=use, deviations=(*record.deviations, *others), reason=reason)


def log_facts(run: RunDir) -> LogFacts:
    """What the log of a run says; nothing where there is none."""
    try:
        with open_file(run.log) as source:
            return read_log(_lines(source))
    except OSError:
        return LogFacts()


def log_triage(run: RunDir, ended: JobEnd, plan: RunDescription | None = None) -> Triage | None:
    """Why a run ended so, as far as its log, its processes and the last runs that passed say; None where no
    feature analyses failures."""
    passed = [pieces_of(earlier.log) for earlier in (_passed_before(run, plan) if plan else [])]
    return analyse(pieces_of(run.log), ended, JobKnowledge(read_run_evidence(run), passed))


def _passed_before(run: RunDir, plan: RunDescription) -> list[RunDir]:
    """Runs that passed, as `passed_runs` has them; none where the history is not to be had."""
    try:
        from ci_tasks.results.history.passed_runs import passed_runs
    except Blocked:  # a Python that was built without SQLite
        return []
    digest = RunEnvironment(**vars(_environment(run))).digest or ""
    return passed_runs(plan.label, plan.row, _MOST_PASSED, image_digest=digest.rpartition("@")[2], host=plan.host)


def _lines(source: Any) -> Iterator[bytes]:
    """Lines of bounded length, so that 100 MB without a newline stay 64 KiB: of a longer one its beginning, or its end
    where that is a progress bar's, which writes its line again and again."""
    while line := source.readline(_LONGEST_LINE):
        more = line
        while more and not more.endswith(b"\n"):
            more = source.readline(_LONGEST_LINE)
            if b"\r" in more.rstrip(b"\r\n"):
                line = more
        yield line


def _junit(run: RunDir) -> Junit | None:
    try:
        return read_junit(read_file(run.junit, _LARGEST_JUNIT))
    except OSError:
        return None


def events_of(run: RunDir) -> list[Event]:
    """What happened in a run; a line that is none is left out."""
    return local_events(run, read_events(content_of(run.events, _LARGEST_EVENTS).decode("utf-8", "replace")))


def _environment(run: RunDir) -> Environment:
    """What the agent found out about the machine; a file that does not hold that is named in `problem`."""
    try:
        return read_record(Environment, run.environment) or Environment()
    except (OSError, RecordError) as error:
        return Environment(problem=str(error))


def _container_calls(run: RunDir) -> tuple[DockerInvocation, ...]:
    try:
        invocations = read_record(DockerInvocations, run.docker)
    except (OSError, RecordError):
        return ()
    return invocations.calls if invocations else ()


def _iso(seconds: float | None) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds") if seconds else None
    except (OverflowError, ValueError, OSError):
        return None  # no clock says so
