"""`prefetch`: what a label's tests will ask the hub for, on the host before anything holds its GPUs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
from ci_tasks.features.prefetch import download, inventory, report
from ci_tasks.features.prefetch.download import Download, Outcome
from ci_tasks.features.prefetch.hub import DEFAULT, Hub, endpoint_of, shown, token_here
from ci_tasks.features.prefetch.hub_errors import CHECKSUM, TROUBLE, HubError, HubRefusal, RepoSnapshot, of_output
from ci_tasks.features.prefetch.inventory import FolderState, mount_space, refused, repository_status, with_space_check
from ci_tasks.features.prefetch.report import (
    FETCHED,
    THERE,
    PathStatus,
    PrefetchReport,
    RepositoryStatus,
    human,
)
from ci_tasks.features.prefetch.requirements import (
    LabelRequirements,
    RequiredRepository,
    container_and_environment,
    label_requirements,
)
from ci_tasks.features.recorder.record import open_recorder
from ci_tasks.features.suites.slime_helpers import HELPERS
from ci_tasks.hosts.executor import CodeSnapshot, Executor, OpenExecutor, PreparedRow, Say
from ci_tasks.hosts.queries import parse_json_object
from ci_tasks.planning.containers import container_rules, is_inside
from ci_tasks.results import store
from ci_tasks.results.store import Batch
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.run.find_rows import JobRows, find_rows
from ci_tasks.run.host_sessions import HostSession
from ci_tasks.run.prepare import print_override_warnings
from ci_tasks.run.row_plans import RowPlanner
from ci_tasks.safe_output import terminal_width
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

if TYPE_CHECKING:
    from ci_tasks.features.prefetch.options import PrefetchOptions

TOKEN = "HF_TOKEN"
AT_ONCE = 4  # repositories that the hub is asked about
_QUERY_TIMEOUT = 60.0  # seconds that the host gets to say what is there
_REMINDER_SECONDS = 20.0
_TRUE = ("1", "on", "yes", "true")  # as huggingface_hub reads its switches
Progress = Callable[[str, str], None]  # a repository's name, and the last words of its download
Answers = Sequence[RepoSnapshot | HubRefusal]
States = Sequence[FolderState | HubError | None]


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
    *,
    say: Say,
    progress: Progress,
    open_executor: OpenExecutor,
) -> int:
    """Print how everything stands, and bring what is missing. Returns 125 where a run would be blocked, else 0."""
    spec = _single_host(config, options.host)
    print_override_warnings(config, source)
    executor = open_executor(spec)  # connected to while the rows are found
    try:
        event = event_context(source)
        job_rows = find_rows(source, options.label, event, options.base, run_needs=not options.static)
        rows = select(job_rows.rows, options.only, options.label)
        batch = store.new_batch(f"prefetch-{options.label}")
        failed = True
        try:
            code = executor.snapshot(batch, source.path, rev=source.rev, base=options.base)
            result = Prefetch(
                source, config, job_rows, rows, executor, code, batch, say, progress, static=options.static
            ).run(options.dry_run)
            failed = result.is_blocked
        finally:
            if not failed or not list(batch.path.glob("*/log")):
                shutil.rmtree(batch.path, ignore_errors=True)
    finally:
        executor.close()
    if options.json:
        checkout, is_blocked = str(source.path), result.is_blocked
        public = PrefetchResult(**vars(result), checkout=checkout, label=options.label, blocked=is_blocked)
        print_json(encode(public, versioned=False))
    else:
        print("\n".join([*report.text(result, terminal_width()), "", report.summary(result)]))
    return EXIT_BLOCKED if result.is_blocked else 0


def before_rows(
    planner: RowPlanner, rows: Sequence[Row], session: HostSession, say: Say, is_wanted: Callable[[], bool]
) -> dict[str, str]:
    """Bring everything that `rows` need to a host: see ci_tasks.run.row_plans.BeforeRows."""
    result = Prefetch(
        source=planner.source,
        config=planner.config,
        job_rows=planner.job_rows,
        rows=rows,
        executor=session.executor,
        code=session.code,
        batch=planner.batch,
        say=say,
        progress=_Reminder(say),
        image=planner.request.image,
        is_wanted=is_wanted,
    ).run()
    missing: dict[str, list[str]] = {}
    for line in result.repositories:
        for row in line.rows if line.problem else ():
            missing.setdefault(row, []).append(f"{line.message} ({line.hint})" if line.hint else line.message)
    for path in result.expected:
        for row in path.rows if path.there is False else ():
            missing.setdefault(row, []).append(f"{path.path} is missing, and no download of the test makes it")
    return {row: "; ".join(dict.fromkeys(reasons)) for row, reasons in missing.items()}


@dataclass(frozen=True)
class Prefetch:
    """The rows of one label on one host. `image` replaces CI's, `is_wanted` is whether anybody still waits."""

    source: CheckoutSource
    config: Config
    job_rows: JobRows
    rows: Sequence[Row]
    executor: Executor
    code: CodeSnapshot
    batch: Batch
    say: Say
    progress: Progress
    image: str | None = None
    is_wanted: Callable[[], bool] = lambda: True
    static: bool = False

    @property
    def spec(self) -> HostSpec:
        return self.executor.spec

    def run(self, dry_run: bool = False) -> PrefetchReport:
        """Raises Blocked where the host cannot be reached."""
        source, read = self.source, self.code.read_file
        with open_recorder(source.path, read, HELPERS, rev=source.rev, static=self.static, say=self.say) as recorder:
            needs = label_requirements(source, self.config, self.job_rows, self.rows, self.spec, recorder)
        endpoint = endpoint_of(self.spec.env)
        if not needs.repositories and not needs.paths:
            return PrefetchReport(self.spec.name, shown(endpoint), unresolved=tuple(needs.unresolved))
        hub = Hub(endpoint, token_here(), self.say, store.home() / "hub")
        answers = self._answers(hub, needs.repositories)
        result, states = self._inventory(needs, answers, hub)
        downloads = [] if dry_run else list(self._downloads(result, needs.repositories, answers, states))
        return self._download(result, downloads, needs, answers, hub) if downloads else result

    def _answers(self, hub: Hub, items: Sequence[RequiredRepository]) -> Answers:
        if self.spec.env.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
            message = f"HF_HUB_OFFLINE is set for {self.spec.name} in hosts.yaml"
            return [hub.offline(message, item.what) for item in items]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda item: hub.find(item.what), items))

    def _inventory(self, needs: LabelRequirements, answers: Answers, hub: Hub) -> tuple[PrefetchReport, States]:
        states, there = self._states(needs, answers)
        lines = [
            repository_status(item, answer, state, hub)
            for item, answer, state in zip(needs.repositories, answers, states, strict=True)
        ]
        mounts = mount_space(lines, states)
        full = [mount for mount in mounts if not mount.fits]
        expected = (
            PathStatus(
                required.what,
                required.place.path,
                there.get(required.place.path or ""),
                tuple(required.rows),
                tuple(required.where),
            )
            for required in needs.paths
        )
        result = PrefetchReport(
            host=self.spec.name,
            endpoint=shown(hub.endpoint),
            repositories=tuple(
                with_space_check(line, full, hub, item) for line, item in zip(lines, needs.repositories, strict=True)
            ),
            mounts=tuple(mounts),
            expected=tuple(expected),
            unresolved=tuple(needs.unresolved),
            notes=_notes(self.spec),
        )
        return result, states

    def _states(self, needs: LabelRequirements, answers: Answers) -> tuple[States, Mapping[str, bool]]:
        """What is on the host, of each repository and of the paths that tests take to be there."""
        snapshots = [answer if isinstance(answer, RepoSnapshot) else answer.last for answer in answers]
        queries = {
            str(number): inventory.files_query(item, snapshot)
            for number, (item, snapshot) in enumerate(zip(needs.repositories, snapshots, strict=True))
            if snapshot is not None and item.place.path is not None
        }
        paths = [required.place.path for required in needs.paths if required.place.path]
        all_queries = {**queries, **({"paths": inventory.paths_query(paths)} if paths else {})}
        results = self.executor.run_queries(all_queries, _QUERY_TIMEOUT) if all_queries else {}
        states = [
            inventory.folder_state(results[str(number)], snapshot) if snapshot and str(number) in results else None
            for number, snapshot in enumerate(snapshots)
        ]
        return states, {
            path: exists is True for path, exists in parse_json_object(results["paths"]).items()
        } if paths else {}

    def _downloads(
        self, result: PrefetchReport, items: Sequence[RequiredRepository], answers: Answers, states: States
    ) -> Sequence[Download]:
        rows = {row.row: row for row in self.rows}
        downloads = []
        for number, (line, item, answer, state) in enumerate(
            zip(result.repositories, items, answers, states, strict=True)
        ):
            if line.problem or line.state == THERE or state is None or isinstance(answer, HubRefusal):
                continue
            row = rows[item.rows[0]]
            container, env = container_and_environment(self.source, self.config, self.job_rows, row, self.spec)
            inside = container if is_inside(container, self.spec) else None
            downloads.append(Download(number, item, answer, inside, env))
        return downloads

    def _download(
        self,
        result: PrefetchReport,
        downloads: Sequence[Download],
        needs: LabelRequirements,
        answers: Answers,
        hub: Hub,
    ) -> PrefetchReport:
        needs_token = any(pending.snapshot.needs_token for pending in downloads)
        give_token = needs_token or TOKEN in self.spec.secrets or self.spec.kind == "local"
        values = {TOKEN: hub.token} if hub.token and give_token else {}
        if "@" in hub.endpoint:
            values["HF_ENDPOINT"] = hub.endpoint
        row = self._prepared(downloads, hub.endpoint, values)
        self.executor.write_plan(row.run, row.plan)

        def progress(number: int, message: str) -> None:
            line = result.repositories[number]
            self.progress(f"{line.name} ({human(line.missing or 0)}) to {line.directory}", message)

        end = download.run_downloads(self.executor, row, self.say, progress, self.is_wanted)
        if end.aborted:
            raise Blocked(f"prefetch on {self.spec.name}: {end.aborted[1]}", hint=f"its log is {row.run.log}")
        log = content_of(row.run.log).decode("utf-8", "replace")
        ended = download.outcomes(log)
        states, _ = self._states(needs, answers)
        lines = list(result.repositories)
        for pending in downloads:
            outcome = ended.get(pending.number, Outcome(read_json(row.run.status).get("exit_code"), log))
            lines[pending.number] = _after(lines[pending.number], outcome, states[pending.number], hub, pending.item)
        failed = any(lines[pending.number].problem for pending in downloads)
        notes = (f"the log of the downloads is {row.run.log}",) if failed else ()
        mounts = tuple(mount_space(lines, states))
        return replace(result, repositories=tuple(lines), mounts=mounts, notes=(*result.notes, *notes))

    def _prepared(self, downloads: Sequence[Download], endpoint: str, values: Mapping[str, str]) -> PreparedRow:
        """The run that downloads. It has neither checkout nor GPU."""
        spec, run = self.spec, RunDir(str(self.batch.path / f"prefetch-{self.spec.name}"))
        Path(run.path).mkdir(parents=True, exist_ok=True)
        paths = self.executor.paths(run)
        env = {**spec.env, **({"HF_ENDPOINT": endpoint} if endpoint != DEFAULT and "@" not in endpoint else {})}
        images = {row.image: self.image for row in self.rows if row.image and self.image}
        id = f"{self.batch.id}.prefetch"
        home = str(store.home()) if spec.kind == "local" else spec.workspace
        plan = Plan(
            id=id,
            label=self.rows[0].label,
            job=self.rows[0].job,
            row="prefetch",
            host=spec.name,
            test=None,
            args="",
            gpus=0,
            image=None,
            runtime=spec.runtime,
            env={},
            secrets=tuple(dict.fromkeys((*spec.secrets, *values))),
            workspace="",
            timeout_minutes=spec.timeout_minutes,
            stall_minutes=spec.stall_minutes,
            deviations=(),
            container=container_rules(spec, id, paths.run, paths.locks, images),
            checkout=self.code.checkout,
            script=download.script(
                downloads, f"{home}/huggingface-venv", [name for name in env if name.startswith("HF_")]
            ),
            host_env=env,
        )
        return PreparedRow(self.rows[0], plan, run, None, secrets=values)


def _after(
    line: RepositoryStatus,
    outcome: Outcome,
    state: FolderState | HubError | None,
    hub: Hub,
    item: RequiredRepository,
) -> RepositoryStatus:
    """A repository whose download has ended. That it is there must be seen too."""
    if outcome.code != 0:
        error = of_output(outcome.output, line.name)
        if outcome.code is None and error.code == TROUBLE:
            error = HubError(TROUBLE, f"{line.name}: the download did not end by itself")
        return refused(line, hub.refusal(error, item.what))
    if isinstance(state, FolderState) and state.absent:
        error = of_output(outcome.output, line.name)
        if error.code == TROUBLE:
            message = f"{line.name}: `hf download` succeeded, but {state.absent} files are not as the hub listed them"
            error = HubError(CHECKSUM, message)
        return refused(line, hub.refusal(error, item.what))
    return replace(line, state=FETCHED, missing=0)


def _notes(spec: HostSpec) -> tuple[str, ...]:
    if spec.kind == "slurm":
        return (f"on {spec.name} this is the login node's view: the compute nodes must share these directories",)
    return ()


def _single_host(config: Config, name: str) -> HostSpec:
    specs = config.select_hosts(name)
    if len(specs) != 1:
        raise UsageError(f"prefetch is for one host, and {name} names several", hint="run it once for each of them")
    return specs[0]


class _Reminder:
    """For a command with a view of its own: each repository once, and now and then how far it is."""

    def __init__(self, say: Say) -> None:
        self._say, self._name, self._last_reminder = say, "", 0.0

    def __call__(self, name: str, message: str) -> None:
        if name != self._name:
            self._name, self._last_reminder = name, time.monotonic()
            self._say(f"fetching {name}")
        elif time.monotonic() - self._last_reminder > _REMINDER_SECONDS:
            self._last_reminder = time.monotonic()
            self._say(f"fetching {name}: {message}")
