"""`prefetch`: what a label's tests will ask the hub for, on the host before anything holds its GPUs; and its report."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.agent.codec import NOT_STORED
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.checkout.snapshot import Snapshot
from ci_tasks.cli.options import BASE, HOST, JSON, LABEL, ONLY, switch
from ci_tasks.cli.shared import CheckoutOptions, GivenOptions, open_checkout, print_result
from ci_tasks.config import Config
from ci_tasks.errors import EXIT_BLOCKED, Blocked, UsageError, one_line, shortened, some
from ci_tasks.features.prefetch import hub as hubs
from ci_tasks.features.prefetch.requirements import LabelRequirements, Unresolved, label_requirements
from ci_tasks.features.recorder.record import open_recorder
from ci_tasks.features.suites.slime_helpers import HELPERS
from ci_tasks.hosts.executor import Executor, OpenExecutor, PreparedRow, Say, open_executor, take_host_snapshot
from ci_tasks.planning.containers import container_rules, is_inside
from ci_tasks.report.table import Table, paragraph, size
from ci_tasks.results import store
from ci_tasks.run.checkout_source import CheckoutSource, RunRequest, event_context
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.prepare import print_override_warnings
from ci_tasks.safe_output import terminal_width
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

if TYPE_CHECKING:
    from ci_tasks.run.prepare import HostSession, RowPlanner

FETCHED, NOT_KEPT, FAILED = "fetched", "not kept", "download failed"
SPARE = 1 << 28  # bytes of a disk that stay free: others write there too
_TOKEN = "HF_TOKEN"
_AT_ONCE = 4  # repositories that the hub is asked about
_LONGEST = 100  # characters of a command that is not understood
_QUERY_TIMEOUT = 60.0  # seconds that the host gets to say which files exist


@dataclass(frozen=True)
class PrefetchOptions(GivenOptions, CheckoutOptions):
    label: str = LABEL.field()
    host: str = HOST.field(default="local", commas=False)
    only: str | None = ONLY.field()
    dry_run: bool = switch("list present and missing files, and download nothing").field()
    record: bool = switch("execute the tests with stubs in a sandbox; finds more than their source").field()
    json: bool = JSON.field()
    base: str | None = BASE.field()


def prefetch(options: PrefetchOptions) -> int:
    """
    ci-tasks prefetch megatron --host h100a --dry-run    lists present, missing and gated files
    ci-tasks prefetch megatron --host h100a              downloads it; after ^C the same command continues
    ci-tasks prefetch ckpt --only async --json

    Reads the tests to find what they download. With --record it also executes them, with stubs for imports and
    programs, in a sandbox without network.

    Runs `hf download` in the image of the rows; a host without containers needs `hf` on its PATH.

    Exit code 0 if a run can have its files, 125 if not: a repository is gated or not found, the hub does not answer, or
    the disk is too small.
    """
    config, source = open_checkout(options)
    say = partial(print, file=sys.stderr, flush=True)
    say(source.headline)
    request = RunRequest(source.label_of(options.label), options.only, options.host, options.base)
    given = (source, config, request, open_executor, say)
    result = prefetch_label(*given, record=options.record, dry_run=options.dry_run)
    print_result(result, lambda: text(result, terminal_width()), as_json=options.json)
    return EXIT_BLOCKED if result.blocked else 0


@dataclass
class RepositoryStatus:
    """One repository. `path` is the test's own name of the directory, `directory` where that is on the host, None if
    nothing there outlives a run, and `mount` the disk with `free` bytes. Sizes are bytes; `problem` is why it cannot be
    had, "" for none. `listing` is what the hub says of it."""

    kind: str
    id: str
    name: str
    revision: str
    path: str
    directory: str | None
    state: str
    rows: tuple[str, ...]
    where: tuple[str, ...]
    commit: str | None = None
    size: int | None = None
    missing: int | None = None
    mount: str | None = None
    free: int | None = None
    problem: str = ""
    message: str = ""
    hint: str = ""
    repository: hubs.HubRepository = field(kw_only=True, metadata=NOT_STORED)
    listing: hubs.Listing | None = field(default=None, metadata=NOT_STORED)

    def refuse(self, problem: str, message: str, hint: str) -> None:
        self.problem, self.message, self.hint = problem, message, hint

    @property
    def is_coming(self) -> bool:
        return self.mount is not None and not self.problem and self.state != hubs.THERE


@dataclass(frozen=True)
class PrefetchReport:
    """As `prefetch --json` prints it. `blocked`: a run would lack something that prefetching cannot bring."""

    host: str
    endpoint: str
    repositories: tuple[RepositoryStatus, ...]
    unresolved: tuple[Unresolved, ...]
    notes: tuple[str, ...]
    blocked: bool
    checkout: str = ""
    label: str = ""


def prefetch_label(
    source: CheckoutSource, config: Config, request: RunRequest, open_executor: OpenExecutor, say: Say,
    *, record: bool = False, dry_run: bool = False,
) -> PrefetchReport:  # fmt: skip
    """How everything stands that the rows will ask for, after what was missing was brought."""
    label, base = request.label, request.base
    spec, *others = config.select_hosts(request.host)
    if others:
        raise UsageError(f"prefetch takes one host, but {request.host} has several", hint="run it once for each")
    print_override_warnings(config, source)
    executor = open_executor(spec)  # connected to while the rows are found
    batch, is_useful = store.new_batch(f"prefetch-{label}"), True  # the directory, for its log
    try:
        job_rows = find_rows(source, label, event_context(source), base, run_needs=record)
        rows = select(job_rows.rows, request.only, label)
        code = take_host_snapshot(source.path, source.rev)
        executor.use(batch, code)
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
    """Bring everything that `rows` need to a host: see ci_tasks.run.prepare.RowPlanner.before_rows."""
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


@dataclass(frozen=True)
class Prefetch:
    """What rows need, on one host; `row` is one of them. `images`: CI's → their replacements; `is_wanted` says whether
    a caller still waits."""

    needs: LabelRequirements
    row: Row
    executor: Executor
    code: Snapshot
    batch: store.Batch
    say: Say
    images: Mapping[str, str] = field(default_factory=dict)
    is_wanted: Callable[[], bool] = lambda: True

    def run(self, dry_run: bool = False) -> PrefetchReport:
        """Raises Blocked if the host cannot be reached."""
        spec, hub = self.executor.spec, hubs.Hub(self.executor.spec.env)
        repositories = self._repositories(hub)
        self._look(repositories)
        for each in repositories:
            if each.listing and each.listing.closed and each.state != hubs.THERE:
                each.refuse(*each.listing.closed)
        notes = _refuse_if_full([each for each in repositories if each.is_coming])
        if spec.kind == "slurm" and repositories:
            notes.append(f"on {spec.name} this is the login node's view: compute nodes must share these directories")
        coming = [each for each in repositories if each.is_coming]
        if coming and not dry_run:
            self._download(hub, coming)
        unresolved = tuple(replace(each, rows=tuple(rows)) for each, rows in self.needs.unresolved.items())
        blocked = any(each.problem for each in repositories)
        return PrefetchReport(spec.name, hub.shown, tuple(repositories), unresolved, tuple(notes), blocked)

    def _repositories(self, hub: hubs.Hub) -> list[RepositoryStatus]:
        """Every repository, with what the hub says of it."""
        repositories = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = pool.map(hub.find, (repository for repository, _ in self.needs.repositories))
            for ((repository, place), asked), answer in zip(self.needs.repositories.items(), answers, strict=True):
                rows, where = (tuple(dict.fromkeys(each)) for each in zip(*asked, strict=True))
                names = (repository.kind, repository.id, repository.name, repository.revision, repository.directory)
                about = (place.path, hubs.MISSING if place.path else NOT_KEPT, rows, where)
                status = RepositoryStatus(*names, *about, message=place.why, repository=repository)
                if isinstance(answer, hubs.HubError):
                    status.refuse(*answer)
                else:
                    status.listing, status.commit = answer, answer.commit
                    status.size = status.missing = sum(answer.files.values())
                repositories.append(status)
        return repositories

    def _look(self, repositories: Sequence[RepositoryStatus]) -> None:
        """See what is on the host, of each repository. A host that cannot be reached comes before the hub."""
        queries = {
            str(number): hubs.files_query(each.repository, each.directory, each.listing)
            for number, each in enumerate(repositories)
            if each.listing and each.directory
        }
        answers = self.executor.run_queries(queries or {"": ["true"]}, _QUERY_TIMEOUT)
        for number, answer in answers.items() if queries else ():
            each = repositories[int(number)]
            if state := hubs.host_state(answer):
                vars(each).update(state)
            else:
                message = f"cannot list the files on the host: {answer.last_line}"
                each.refuse(FAILED, message, "its python3 must be able to read the directory")

    def _download(self, hub: hubs.Hub, coming: Sequence[RepositoryStatus]) -> None:
        """Bring them, and note how each ended."""
        row = self._prepared(hub, coming)
        self.executor.write_plan(row.run, row.plan)
        names = [f"{each.name} ({size(each.missing or 0)}) to {each.directory}" for each in coming]
        end = hubs.run_downloads(self.executor, row, names, self.say, self.is_wanted)
        if end.aborted:
            raise Blocked(f"prefetch on {self.executor.spec.name}: {end.aborted[1]}", hint=f"its log is {row.run.log}")
        results = hubs.outcomes(row.run)
        self._look(coming)
        for number, each in enumerate(coming):
            code, line = results.get(number, (None, "it did not start"))
            if code == 0 and each.missing == 0:
                each.state = FETCHED
            elif not each.problem:
                why = line if code != 0 else "`hf download` succeeded, but files differ from the hub's list"
                each.refuse(FAILED, f"{each.name}: {why}", f"see {row.run.log}, then try again")

    def _prepared(self, hub: hubs.Hub, coming: Sequence[RepositoryStatus]) -> PreparedRow:
        """The run that downloads. It has neither checkout nor GPU."""
        spec, is_secret = self.executor.spec, "@" in hub.endpoint
        host_env = {**spec.env, **({} if is_secret else hub.variables)}
        names = [name for name in host_env if name.startswith("HF_")]
        commands = []
        for each in coming:
            container, env = self.needs.runs[each.rows[0]]
            inside = container if is_inside(container, spec) else None
            commands.append(hubs.command(each.repository, each.directory or "", inside, env, names))
        secrets = hub.variables if is_secret else {}
        needs_token = any(each.listing and each.listing.needs_token for each in coming)
        if hub.token and (needs_token or _TOKEN in spec.secrets or spec.kind == "local"):
            secrets = {**secrets, _TOKEN: hub.token}
        run = RunDir(str(self.batch.path / f"prefetch-{spec.name}"))
        Path(run.path).mkdir(parents=True, exist_ok=True)
        paths, id = self.executor.paths(run), f"{self.batch.id}.prefetch"
        plan = Plan(
            id=id, label=self.row.label, job=self.row.job, row="prefetch", host=spec.name, runtime=spec.runtime, env={},
            secrets=tuple(dict.fromkeys((*spec.secrets, *secrets))), workspace="", script=hubs.script(commands),
            timeout_minutes=spec.timeout_minutes, stall_minutes=spec.stall_minutes, checkout=self.code.checkout,
            container=container_rules(spec, id, paths.run, paths.locks, self.images),
            host_env=host_env,
        )  # fmt: skip
        return PreparedRow(self.row, plan, run, None, secrets=secrets)


def _refuse_if_full(coming: Sequence[RepositoryStatus]) -> list[str]:
    """Refuse all downloads to a disk that is too small. Returns a line for each disk."""
    lines = []
    for mount in dict.fromkeys(each.mount for each in coming):
        own = [each for each in coming if each.mount == mount]
        free, needed = own[0].free or 0, sum(each.missing or 0 for each in own)
        lines.append(f"{mount} has {size(free)} free, and {size(needed)} are needed")
        for each in own if needed > free - SPARE else ():
            each.refuse("disk full", lines[-1], "free some space there, or map `mounts` to a larger disk")
    return lines


# -- the report --------------------------------------------------------------------------------------------------------


def text(report: PrefetchReport, width: int | None = None) -> list[str]:
    """The table, what each problem asks for, the mounts, what the source leaves open, and a summary."""
    if not report.repositories and not report.unresolved:
        return ["no test of these rows downloads from a hub"]
    head = ("STATE", "REPOSITORY", "REVISION", "SIZE", "ROWS", f"ON {report.host.upper()}")
    blocks = [Table([*map(_cells, report.repositories)], head).text(width)]
    for line in {line.message: line for line in report.repositories if line.problem}.values():
        lines = [*paragraph(line.message, width), *paragraph(f"→ {line.hint}", width, "  ")]
        blocks.append([*lines, f"  asked for by {some(line.where, 1)}"])
    not_kept = (line for line in report.repositories if line.state == NOT_KEPT)
    blocks.append([*dict.fromkeys(f"not prefetched: {line.path}: {line.message}" for line in not_kept)])
    for each in report.unresolved:
        blocks.append([f"not known: {each.where}: {shortened(one_line(each.text), _LONGEST)}", f"  {each.why}"])
    words = Counter(line.problem or line.state for line in report.repositories)
    states = ", ".join(f"{count} {word}" for word, count in words.items())
    blocks += [[*report.notes], [f"repositories: {states or 'none'}"]]
    return [line for block in blocks if block for line in (*block, "")][:-1]


def _cells(line: RepositoryStatus) -> tuple[str, ...]:
    revision = line.revision + (f"@{line.commit[:8]}" if line.commit and line.commit != line.revision else "")
    listed = "-" if line.size is None else size(line.size)
    return (line.problem or line.state, line.name, revision, listed, str(len(line.rows)), line.directory or "-")
