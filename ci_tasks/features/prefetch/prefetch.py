"""`prefetch`: what a label's tests will ask the hub for, on the host before anything holds its GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.agent.codec import encode
from ci_tasks.agent.files import content_of
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir, read_json
from ci_tasks.cli.output import print_json
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import EXIT_BLOCKED, Blocked, UsageError
from ci_tasks.features.prefetch import report
from ci_tasks.features.prefetch.download import Download, ProgressLine, outcomes, run_downloads, script
from ci_tasks.features.prefetch.host_files import HostState, files_query, host_state
from ci_tasks.features.prefetch.hub import DEFAULT, Hub, HubError, Listing, of_output
from ci_tasks.features.prefetch.options import PrefetchOptions
from ci_tasks.features.prefetch.report import (
    FETCHED,
    MISSING,
    NOT_KEPT,
    THERE,
    MountSpace,
    PrefetchReport,
    RepositoryStatus,
    human,
)
from ci_tasks.features.prefetch.repositories import HubRepository
from ci_tasks.features.prefetch.requirements import Asked, LabelRequirements, label_requirements
from ci_tasks.features.recorder.record import open_recorder
from ci_tasks.features.suites.slime_helpers import HELPERS
from ci_tasks.hosts.executor import CodeSnapshot, Executor, OpenExecutor, PreparedRow, Say
from ci_tasks.planning.containers import HostPath, container_rules, is_inside
from ci_tasks.results import store
from ci_tasks.results.store import Batch
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.prepare import print_override_warnings
from ci_tasks.safe_output import terminal_width
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

if TYPE_CHECKING:
    from ci_tasks.run.host_session import HostSession
    from ci_tasks.run.row_plans import RowPlanner

SPARE = 1 << 28  # bytes of a disk that stay free: others write there too
_TOKEN = "HF_TOKEN"
_AT_ONCE = 4  # repositories that the hub is asked about
_QUERY_TIMEOUT = 60.0  # seconds that the host gets to say what is there


@dataclass(frozen=True, kw_only=True)
class PrefetchResult(PrefetchReport):
    """As `prefetch --json` prints it. `blocked`: a run would lack something that prefetching cannot bring."""

    checkout: str
    label: str
    blocked: bool


def prefetch_label(
    source: CheckoutSource,
    config: Config,
    options: PrefetchOptions,
    progress: ProgressLine,
    open_executor: OpenExecutor,
) -> int:
    """Print how everything stands, and bring what is missing. Returns 125 where a run would be blocked, else 0."""
    spec, *others = config.select_hosts(options.host)
    if others:
        raise UsageError(f"prefetch is for one host, and {options.host} names several", hint="run it once for each")
    print_override_warnings(config, source)
    executor = open_executor(spec)  # connected to while the rows are found
    try:
        job_rows = find_rows(source, options.label, event_context(source), options.base, run_needs=options.record)
        rows = select(job_rows.rows, options.only, options.label)
        batch = store.new_batch(f"prefetch-{options.label}")
        is_useful = True  # the directory of the run, for its log
        try:
            code = executor.snapshot(batch, source.path, rev=source.rev, base=options.base)
            read, helpers = code.read_file, HELPERS
            with open_recorder(
                source.path, read, helpers, rev=source.rev, execute=options.record, say=progress.say
            ) as recorder:
                needs = label_requirements(source, config, job_rows, rows, spec, recorder)
            result = Prefetch(needs, rows[0], executor, code, batch, progress).run(options.dry_run)
            is_useful = result.is_blocked
        finally:
            if not is_useful or not list(batch.path.glob("*/log")):
                shutil.rmtree(batch.path, ignore_errors=True)
    finally:
        executor.close()
    if options.json:
        blocked = result.is_blocked
        public = PrefetchResult(**vars(result), checkout=str(source.path), label=options.label, blocked=blocked)
        print_json(encode(public, versioned=False))
    else:
        print("\n".join(report.text(result, terminal_width())))
    return EXIT_BLOCKED if result.is_blocked else 0


def before_rows(
    planner: RowPlanner, rows: Sequence[Row], session: HostSession, say: Say, is_wanted: Callable[[], bool]
) -> dict[str, str]:
    """Bring everything that `rows` need to a host: see ci_tasks.run.row_plans.RowPlanner.before_rows."""
    source, executor, code = planner.source, session.executor, session.code
    with open_recorder(source.path, code.read_file, HELPERS, rev=source.rev, execute=False, say=say) as recorder:
        needs = label_requirements(source, planner.config, planner.job_rows, rows, executor.spec, recorder)
    images = {row.image: planner.request.image for row in rows if row.image and planner.request.image}
    progress = ProgressLine(None, say)
    result = Prefetch(needs, rows[0], executor, code, planner.batch, progress, images, is_wanted).run()
    missing: dict[str, dict[str, None]] = {}
    for line in result.repositories:
        for row in line.rows if line.problem else ():
            missing.setdefault(row, {})[f"{line.message} ({line.hint})" if line.hint else line.message] = None
    return {row: "; ".join(reasons) for row, reasons in missing.items()}


@dataclass
class Wanted:
    """A repository that rows want, with its place on the host; what the hub and the host say of it, or why it cannot be
    had."""

    repository: HubRepository
    place: HostPath
    asked: Asked
    listing: Listing | None = None
    held: HostState | None = None
    error: HubError | None = None
    is_fetched: bool = False

    @property
    def is_there(self) -> bool:
        return self.held is not None and self.held.word == THERE

    def status(self, hub: Hub) -> RepositoryStatus:
        repository, listing, held, error = self.repository, self.listing, self.held, self.error
        size = sum(listing.files.values()) if listing else None
        state = held.word if held else MISSING if self.place.path else NOT_KEPT
        return RepositoryStatus(
            kind=repository.kind,
            id=repository.id,
            name=repository.name,
            revision=repository.revision,
            path=repository.directory,
            directory=self.place.path,
            state=FETCHED if self.is_fetched else state,
            rows=tuple(self.asked.rows),
            where=tuple(self.asked.where),
            commit=listing.commit if listing else None,
            size=size,
            missing=0 if self.is_fetched else held.missing if held else size,
            mount=held.mount if held else None,
            problem=error.code if error else "",
            message=error.message if error else self.place.why,
            hint=hub.hint(error.code, repository) if error else "",
        )


@dataclass(frozen=True)
class Prefetch:
    """What rows need, on one host; `row` is one of them. `images`: CI's → those that replace them; `is_wanted` is
    whether anybody waits."""

    needs: LabelRequirements
    row: Row
    executor: Executor
    code: CodeSnapshot
    batch: Batch
    progress: ProgressLine
    images: Mapping[str, str] = field(default_factory=dict)
    is_wanted: Callable[[], bool] = lambda: True

    @property
    def spec(self) -> HostSpec:
        return self.executor.spec

    def run(self, dry_run: bool = False) -> PrefetchReport:
        """Raises Blocked where the host cannot be reached."""
        unresolved = tuple(replace(each, rows=tuple(rows)) for each, rows in self.needs.unresolved.items())
        hub, notes = Hub(self.spec.env, self.progress.say), []
        all_wanted = [Wanted(*key, asked) for key, asked in self.needs.repositories.items()]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = pool.map(hub.find, (wanted.repository for wanted in all_wanted))
            for wanted, answer in zip(all_wanted, answers, strict=True):
                wanted.listing = answer if isinstance(answer, Listing) else None
                wanted.error = answer if isinstance(answer, HubError) else None
        self._look(all_wanted)
        for wanted in all_wanted:
            if wanted.listing and wanted.listing.closed and not wanted.is_there:
                wanted.error = wanted.error or wanted.listing.closed
        mounts = _mounts(all_wanted)
        full = {mount.mount: mount for mount in mounts if not mount.fits}
        for wanted in all_wanted:
            if wanted.held and wanted.held.missing and not wanted.error and (mount := full.get(wanted.held.mount)):
                message = f"{mount.mount} has {human(mount.free)} free, and {human(mount.needed)} are to come to it"
                wanted.error = HubError("full", message)
        if self.spec.kind == "slurm" and all_wanted:
            notes = [f"on {self.spec.name} this is the login node's view: compute nodes must share these directories"]
        coming = [wanted for wanted in all_wanted if wanted.held and not wanted.error and not wanted.is_there]
        if coming and not dry_run:
            log = self._download(hub, coming)
            mounts = _mounts(all_wanted)
            notes += [f"the log of the downloads is {log}"] if any(wanted.error for wanted in coming) else []
        lines = tuple(wanted.status(hub) for wanted in all_wanted)
        return PrefetchReport(self.spec.name, hub.shown, lines, tuple(mounts), unresolved, tuple(notes))

    def _look(self, all_wanted: Sequence[Wanted]) -> None:
        """See what is on the host, of each repository."""
        seen = {
            str(number): (wanted, wanted.listing, files_query(wanted.repository, wanted.place.path, wanted.listing))
            for number, wanted in enumerate(all_wanted)
            if wanted.listing and wanted.place.path
        }
        queries = {number: query for number, (_, _, query) in seen.items()}
        results = self.executor.run_queries(queries, _QUERY_TIMEOUT) if queries else {}
        for number, (wanted, listing, _) in seen.items():
            state = host_state(results[number], listing)
            wanted.held = state if isinstance(state, HostState) else None
            wanted.error = state if isinstance(state, HubError) else wanted.error

    def _download(self, hub: Hub, coming: Sequence[Wanted]) -> str:
        """Bring them, and note how each ended. Returns the path of the log."""
        downloads = []
        for number, wanted in enumerate(coming):
            container, env = self.needs.runs[next(iter(wanted.asked.rows))]
            inside = container if is_inside(container, self.spec) else None
            files = list(wanted.listing.files) if wanted.listing else []
            downloads.append(Download(number, wanted.repository, wanted.place.path or "", files, inside, env))
        values = {}
        needs_token = any(wanted.listing and wanted.listing.needs_token for wanted in coming)
        if hub.token and (needs_token or _TOKEN in self.spec.secrets or self.spec.kind == "local"):
            values[_TOKEN] = hub.token
        if "@" in hub.endpoint:
            values["HF_ENDPOINT"] = hub.endpoint
        row = self._prepared(downloads, hub.endpoint, values)
        self.executor.write_plan(row.run, row.plan)

        def progress(number: int, message: str) -> None:
            line = coming[number].status(hub)
            self.progress(f"{line.name} ({human(line.missing or 0)}) to {line.directory}", message)

        end = run_downloads(self.executor, row, self.progress.say, progress, self.is_wanted)
        if end.aborted:
            raise Blocked(f"prefetch on {self.spec.name}: {end.aborted[1]}", hint=f"its log is {row.run.log}")
        log = content_of(row.run.log).decode("utf-8", "replace")
        self._look(coming)
        for number, wanted in enumerate(coming):
            code, output = outcomes(log).get(number, (read_json(row.run.status).get("exit_code"), log))
            absent = wanted.held.absent if wanted.held else 0
            wanted.error = wanted.error or download_error(wanted.repository.name, code, output, absent)
            wanted.is_fetched = not wanted.error
        return row.run.log

    def _prepared(self, downloads: Sequence[Download], endpoint: str, values: Mapping[str, str]) -> PreparedRow:
        """The run that downloads. It has neither checkout nor GPU."""
        spec, run = self.spec, RunDir(str(self.batch.path / f"prefetch-{self.spec.name}"))
        Path(run.path).mkdir(parents=True, exist_ok=True)
        paths, id = self.executor.paths(run), f"{self.batch.id}.prefetch"
        env = {**spec.env, **({"HF_ENDPOINT": endpoint} if endpoint != DEFAULT and "@" not in endpoint else {})}
        home = str(store.home()) if spec.kind == "local" else spec.workspace
        plan = Plan(
            id=id,
            label=self.row.label,
            job=self.row.job,
            row="prefetch",
            host=spec.name,
            runtime=spec.runtime,
            env={},
            secrets=tuple(dict.fromkeys((*spec.secrets, *values))),
            workspace="",
            timeout_minutes=spec.timeout_minutes,
            stall_minutes=spec.stall_minutes,
            container=container_rules(spec, id, paths.run, paths.locks, self.images),
            checkout=self.code.checkout,
            script=script(downloads, f"{home}/huggingface-venv", [name for name in env if name.startswith("HF_")]),
            host_env=env,
        )
        return PreparedRow(self.row, plan, run, None, secrets=values)


def download_error(name: str, code: int | None, output: str, absent: int) -> HubError | None:
    """Why a download that has ended brought nothing, None if it did: `absent` files are not there, which must be seen
    too."""
    if code == 0 and not absent:
        return None
    error = of_output(output, name)
    if error.code != "trouble" or code not in (0, None):
        return error
    if code is None:
        return HubError("trouble", f"{name}: the download did not end by itself")
    return HubError("checksum", f"{name}: `hf download` succeeded, but {absent} files are not as the hub listed them")


def _mounts(all_wanted: Sequence[Wanted]) -> list[MountSpace]:
    needed: dict[str, tuple[int, int]] = {}
    for wanted in all_wanted:
        if held := wanted.held:
            before = needed.get(held.mount, (0, 0))[1]
            needed[held.mount] = (held.free, before + (0 if wanted.error else held.missing))
    return [MountSpace(mount, free, coming, SPARE) for mount, (free, coming) in sorted(needed.items())]
