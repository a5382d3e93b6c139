"""`prefetch`: what a label's tests will ask the hub for, on the host before anything holds its GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.files import content_of
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.checkout.snapshot import Snapshot
from ci_tasks.config import Config
from ci_tasks.errors import Blocked, UsageError
from ci_tasks.features.prefetch import report
from ci_tasks.features.prefetch.download import Download, outcomes, run_downloads, script
from ci_tasks.features.prefetch.hub import DEFAULT, Hub, HubError, Listing, files_query, host_state
from ci_tasks.features.prefetch.report import PrefetchReport, RepositoryStatus, human
from ci_tasks.features.prefetch.repositories import HubRepository
from ci_tasks.features.prefetch.requirements import LabelRequirements, label_requirements
from ci_tasks.features.recorder.record import open_recorder
from ci_tasks.features.suites.slime_helpers import HELPERS
from ci_tasks.hosts.executor import Executor, OpenExecutor, PreparedRow, Say
from ci_tasks.planning.containers import container_rules, is_inside
from ci_tasks.results import store
from ci_tasks.results.store import Batch
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.prepare import print_override_warnings
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

if TYPE_CHECKING:
    from ci_tasks.run.row_plans import HostSession, RowPlanner

SPARE = 1 << 28  # bytes of a disk that stay free: others write there too
_TOKEN = "HF_TOKEN"
_AT_ONCE = 4  # repositories that the hub is asked about
_QUERY_TIMEOUT = 60.0  # seconds that the host gets to say what is there


def prefetch_label(
    source: CheckoutSource,
    config: Config,
    label: str,
    host: str,
    open_executor: OpenExecutor,
    say: Say,
    only: str | None = None,
    base: str | None = None,
    *,
    record: bool = False,
    dry_run: bool = False,
) -> PrefetchReport:
    """How everything stands that the rows will ask for, after what was missing was brought."""
    spec, *others = config.select_hosts(host)
    if others:
        raise UsageError(f"prefetch is for one host, and {host} names several", hint="run it once for each")
    print_override_warnings(config, source)
    executor = open_executor(spec)  # connected to while the rows are found
    batch, is_useful = store.new_batch(f"prefetch-{label}"), True  # the directory, for its log
    try:
        job_rows = find_rows(source, label, event_context(source), base, run_needs=record)
        rows = select(job_rows.rows, only, label)
        code = executor.snapshot(batch, source.path, rev=source.rev, base=base)
        recorder = open_recorder(source.path, code.read_file, HELPERS, rev=source.rev, execute=record, say=say)
        needs = label_requirements(source, config, job_rows, rows, spec, recorder)
        result = Prefetch(needs, rows[0], executor, code, batch, say).run(dry_run)
        is_useful = result.blocked
        return replace(result, checkout=str(source.path), label=label)
    finally:
        executor.close()
        if not is_useful or not list(batch.path.glob("*/log")):
            shutil.rmtree(batch.path, ignore_errors=True)


def before_rows(
    planner: RowPlanner, rows: Sequence[Row], session: HostSession, say: Say, is_wanted: Callable[[], bool]
) -> dict[str, str]:
    """Bring everything that `rows` need to a host: see ci_tasks.run.row_plans.RowPlanner.before_rows."""
    source, executor, code = planner.source, session.executor, planner.code
    recorder = open_recorder(source.path, code.read_file, HELPERS, rev=source.rev, execute=False, say=say)
    needs = label_requirements(source, planner.config, planner.job_rows, rows, executor.spec, recorder)
    images = {row.image: planner.request.image for row in rows if row.image and planner.request.image}
    result = Prefetch(needs, rows[0], executor, code, planner.batch, say, images, is_wanted).run()
    missing: dict[str, dict[str, None]] = {}
    for line in result.repositories:
        for row in line.rows if line.problem else ():
            missing.setdefault(row, {})[f"{line.message} ({line.hint})"] = None
    return {row: "; ".join(reasons) for row, reasons in missing.items()}


@dataclass
class Wanted:
    """A repository that rows want, and how it stands; `listing` is what the hub says of it."""

    repository: HubRepository
    status: RepositoryStatus
    listing: Listing | None = None

    def update(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)

    def refuse(self, problem: str, message: str, hint: str) -> None:
        self.update(problem=problem, message=message, hint=hint)

    @property
    def is_coming(self) -> bool:
        return self.status.mount is not None and not self.status.problem and self.status.state != report.THERE


@dataclass(frozen=True)
class Prefetch:
    """What rows need, on one host; `row` is one of them. `images`: CI's → those that replace them; `is_wanted` is
    whether anybody waits."""

    needs: LabelRequirements
    row: Row
    executor: Executor
    code: Snapshot
    batch: Batch
    say: Say
    images: Mapping[str, str] = field(default_factory=dict)
    is_wanted: Callable[[], bool] = lambda: True

    def run(self, dry_run: bool = False) -> PrefetchReport:
        """Raises Blocked if the host cannot be reached."""
        spec, hub, notes = self.executor.spec, Hub(self.executor.spec.env), []
        all_wanted = self._wanted(hub)
        self._look(all_wanted)
        for wanted in all_wanted:
            closed = wanted.listing and wanted.listing.closed
            if closed and wanted.status.state != report.THERE:
                wanted.refuse(closed.problem, closed.message, closed.hint)
        notes += _refuse_if_full([wanted for wanted in all_wanted if wanted.is_coming])
        if spec.kind == "slurm" and all_wanted:
            notes.append(f"on {spec.name} this is the login node's view: compute nodes must share these directories")
        coming = [wanted for wanted in all_wanted if wanted.is_coming]
        if coming and not dry_run:
            log = self._download(hub, coming)
            notes += [f"the log of the downloads is {log}"] if any(wanted.status.problem for wanted in coming) else []
        statuses = tuple(wanted.status for wanted in all_wanted)
        unresolved = tuple(replace(each, rows=tuple(rows)) for each, rows in self.needs.unresolved.items())
        blocked = any(status.problem for status in statuses)
        return PrefetchReport(spec.name, hub.shown, statuses, unresolved, tuple(notes), blocked)

    def _wanted(self, hub: Hub) -> list[Wanted]:
        """Every repository, with what the hub says of it."""
        all_wanted = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = pool.map(hub.find, (repository for repository, _ in self.needs.repositories))
            for ((repository, place), asked), answer in zip(self.needs.repositories.items(), answers, strict=True):
                rows, where = (tuple(dict.fromkeys(each)) for each in zip(*asked, strict=True))
                names = (repository.kind, repository.id, repository.name, repository.revision, repository.directory)
                state = report.MISSING if place.path else report.NOT_KEPT
                status = RepositoryStatus(*names, place.path, state, rows, where, message=place.why)
                all_wanted.append(wanted := Wanted(repository, status))
                if isinstance(answer, HubError):
                    wanted.refuse(answer.problem, answer.message, answer.hint)
                else:
                    size = sum(answer.files.values())
                    wanted.listing = answer
                    wanted.update(commit=answer.commit, size=size, missing=size)
        return all_wanted

    def _look(self, all_wanted: Sequence[Wanted]) -> None:
        """See what is on the host, of each repository."""
        seen = {str(number): wanted for number, wanted in enumerate(all_wanted) if wanted.listing}
        queries = {
            number: files_query(wanted.repository, wanted.status.directory, wanted.listing)
            for number, wanted in seen.items()
            if wanted.listing and wanted.status.directory
        }
        for number, answer in (self.executor.run_queries(queries, _QUERY_TIMEOUT) if queries else {}).items():
            if state := host_state(answer):
                seen[number].update(**state)
            else:
                message = f"cannot list the files on the host: {answer.last_line}"
                seen[number].refuse(report.FAILED, message, "its python3 must be able to read the directory")

    def _download(self, hub: Hub, coming: Sequence[Wanted]) -> str:
        """Bring them, and note how each ended. Returns the path of the log."""
        row = self._prepared(hub, coming)
        self.executor.write_plan(row.run, row.plan)
        names = [f"{each.name} ({human(each.missing or 0)}) to {each.directory}" for each in (w.status for w in coming)]
        end = run_downloads(self.executor, row, names, self.say, self.is_wanted)
        if end.aborted:
            raise Blocked(f"prefetch on {self.executor.spec.name}: {end.aborted[1]}", hint=f"its log is {row.run.log}")
        results = outcomes(content_of(row.run.log).decode("utf-8", "replace"))
        self._look(coming)
        for number, wanted in enumerate(coming):
            code, line = results.get(number, (None, "it did not begin"))
            if code == 0 and wanted.status.missing == 0:
                wanted.update(state=report.FETCHED)
            elif not wanted.status.problem:
                why = line if code != 0 else "`hf download` succeeded, but files are not as the hub lists them"
                wanted.refuse(report.FAILED, f"{wanted.repository.name}: {why}", f"see {row.run.log}, then try again")
        return row.run.log

    def _prepared(self, hub: Hub, coming: Sequence[Wanted]) -> PreparedRow:
        """The run that downloads. It has neither checkout nor GPU."""
        spec, downloads = self.executor.spec, []
        for number, wanted in enumerate(coming):
            container, env = self.needs.runs[wanted.status.rows[0]]
            inside = container if is_inside(container, spec) else None
            downloads.append(Download(number, wanted.repository, wanted.status.directory or "", inside, env))
        secrets = {"HF_ENDPOINT": hub.endpoint} if "@" in hub.endpoint else {}
        needs_token = any(wanted.listing and wanted.listing.needs_token for wanted in coming)
        if hub.token and (needs_token or _TOKEN in spec.secrets or spec.kind == "local"):
            secrets[_TOKEN] = hub.token
        run = RunDir(str(self.batch.path / f"prefetch-{spec.name}"))
        Path(run.path).mkdir(parents=True, exist_ok=True)
        paths, id = self.executor.paths(run), f"{self.batch.id}.prefetch"
        env = {
            **spec.env,
            **({"HF_ENDPOINT": hub.endpoint} if hub.endpoint != DEFAULT and "@" not in hub.endpoint else {}),
        }
        plan = Plan(
            id=id,
            label=self.row.label,
            job=self.row.job,
            row="prefetch",
            host=spec.name,
            runtime=spec.runtime,
            env={},
            secrets=tuple(dict.fromkeys((*spec.secrets, *secrets))),
            workspace="",
            timeout_minutes=spec.timeout_minutes,
            stall_minutes=spec.stall_minutes,
            container=container_rules(spec, id, paths.run, paths.locks, self.images),
            checkout=self.code.checkout,
            script=script(downloads, [name for name in env if name.startswith("HF_")]),
            host_env=env,
        )
        return PreparedRow(self.row, plan, run, None, secrets=secrets)


def _refuse_if_full(coming: Sequence[Wanted]) -> list[str]:
    """Refuse all that comes to a disk which is too small. Returns a line for each disk."""
    lines = []
    for mount in dict.fromkeys(wanted.status.mount for wanted in coming):
        own = [wanted for wanted in coming if wanted.status.mount == mount]
        free, needed = own[0].status.free or 0, sum(wanted.status.missing or 0 for wanted in own)
        lines.append(f"{mount} has {human(free)} free, and {human(needed)} are to come to it")
        for wanted in own if needed > free - SPARE else ():
            wanted.refuse(report.DISK_FULL, lines[-1], "free some space there, or let `mounts` name a larger disk")
    return lines
