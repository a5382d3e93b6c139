"""`prefetch`: what a label's tests will ask the hub for, on the host before anything holds its GPUs."""

from __future__ import annotations

import base64
import json
import posixpath
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.agent.codec import encode
from ci_tasks.agent.files import content_of
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Plan, QueryAnswer
from ci_tasks.agent.run_directory import RunDir, read_json
from ci_tasks.cli.output import print_json
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import EXIT_BLOCKED, Blocked, UsageError
from ci_tasks.features.prefetch import report
from ci_tasks.features.prefetch.download import Download, ProgressLine, outcomes, run_downloads, script
from ci_tasks.features.prefetch.hub import DEFAULT, Hub, HubError, Listing, Refusal, of_output
from ci_tasks.features.prefetch.options import PrefetchOptions
from ci_tasks.features.prefetch.report import (
    FETCHED,
    MISSING,
    NOT_KEPT,
    PARTLY,
    THERE,
    MountSpace,
    PathStatus,
    PrefetchReport,
    RepositoryStatus,
    UnresolvedInRows,
    human,
)
from ci_tasks.features.prefetch.repositories import CACHE, HubRepository
from ci_tasks.features.prefetch.requirements import LabelRequirements, label_requirements
from ci_tasks.features.recorder.record import open_recorder
from ci_tasks.features.suites.slime_helpers import HELPERS
from ci_tasks.hosts.executor import CodeSnapshot, Executor, OpenExecutor, PreparedRow, Say
from ci_tasks.hosts.queries import parse_json_object, python_query
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
    from ci_tasks.run.host_sessions import HostSession
    from ci_tasks.run.row_plans import RowPlanner

SPARE = 1 << 28  # bytes of a disk that stay free: others write there too
_TOKEN = "HF_TOKEN"
_AT_ONCE = 4  # repositories that the hub is asked about
_QUERY_TIMEOUT = 60.0  # seconds that the host gets to say what is there
_LONGEST = 100_000  # characters of one argument; Linux allows 128 KiB
# Of each file its size, and whether it is known to be that of the commit; of one that is absent, null. With --local-dir
# huggingface_hub has DIR/FILE, and DIR/.cache/huggingface/download/FILE.metadata of three lines: commit, etag, and the
# time at which both were true. In its cache, snapshots/COMMIT/FILE is of that commit.
_FILES = """
import base64, json, os, sys, zlib
top, below, commit, names = json.loads(zlib.decompress(base64.b64decode("".join(sys.argv[1:]))))
top = os.path.expanduser(top)
def is_sure(name, changed):
    try:
        with open(os.path.join(top, ".cache", "huggingface", "download", name + ".metadata")) as source:
            of, etag, when = source.read().split()
        return of == commit and changed - 1 <= float(when)
    except (OSError, ValueError):
        return False
def file_state(name):
    path = os.path.join(top, below, name)
    try:
        status = os.stat(path)
        return [status.st_size, bool(below) or is_sure(name, status.st_mtime)] if os.path.isfile(path) else None
    except OSError:
        return None
mount = top
while not os.path.isdir(mount) and mount != os.path.dirname(mount):
    mount = os.path.dirname(mount)
disk = os.statvfs(mount)
mount = os.path.realpath(mount)
while not os.path.ismount(mount):
    mount = os.path.dirname(mount)
files = [file_state(name) for name in names]
print(json.dumps({"mount": mount, "free": disk.f_bavail * disk.f_frsize, "files": files}))
"""
_PATHS = "import json, os, sys; print(json.dumps({p: os.path.exists(os.path.expanduser(p)) for p in sys.argv[1:]}))"


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
    """Bring everything that `rows` need to a host: see ci_tasks.run.row_plans.BeforeRows."""
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
    for path in result.expected:
        for row in path.rows if path.there is False else ():
            missing.setdefault(row, {})[f"{path.path} is missing, and no download of the test makes it"] = None
    return {row: "; ".join(reasons) for row, reasons in missing.items()}


@dataclass(frozen=True)
class HostState:
    """How a repository's files are on the host: the mount that they are on, its free bytes, how many files are there,
    how many have the right size and perhaps another content, how many and how many bytes are missing."""

    mount: str
    free: int
    there: int
    unsure: int
    absent: int
    missing: int

    @property
    def word(self) -> str:
        if not self.unsure and not self.absent:
            return THERE
        return PARTLY if self.there or self.unsure else MISSING


Answers = Sequence[Listing | Refusal]
States = Sequence["HostState | HubError | None"]


@dataclass(frozen=True)
class Prefetch:
    """What rows need, on one host. `images`: CI's → those that replace them; `is_wanted` is whether anybody waits."""

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
        unresolved = tuple(UnresolvedInRows(*key, tuple(rows)) for key, rows in self.needs.unresolved.items())
        if not self.needs.repositories and not self.needs.paths:
            return PrefetchReport(self.spec.name, "", unresolved=unresolved)
        hub = Hub(self.spec.env, self.progress.say, store.home() / "hub")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = list(pool.map(hub.find, (repository for repository, _ in self.needs.repositories)))
        states, there = self._look(answers)
        lines = [self._status(hub, *each) for each in zip(self.needs.repositories, answers, states, strict=True)]
        mounts = _mounts(lines, states)
        full = {mount.mount: mount for mount in mounts if not mount.fits}
        for at, (repository, _) in enumerate(self.needs.repositories):
            if (mount := full.get(lines[at].mount or "")) and lines[at].missing and not lines[at].problem:
                message = f"{mount.mount} has {human(mount.free)} free, and {human(mount.needed)} are to come to it"
                lines[at] = _refused(lines[at], HubError("full", message), hub, repository)
        notes = []
        if self.spec.kind == "slurm":
            notes = [
                f"on {self.spec.name} this is the login node's view: the compute nodes must share these directories"
            ]
        if not dry_run and (downloads := list(self._downloads(lines, answers, states))):
            log = self._download(hub, downloads, lines, answers)
            mounts = _mounts(lines, self._look(answers)[0])
            if any(lines[download.number].problem for download in downloads):
                notes.append(f"the log of the downloads is {log}")
        expected = (
            PathStatus(path, place.path, there.get(place.path or ""), tuple(asked.rows), tuple(asked.where))
            for (path, place), asked in self.needs.paths.items()
        )
        return PrefetchReport(
            self.spec.name, hub.shown, tuple(lines), tuple(mounts), tuple(expected), unresolved, tuple(notes)
        )

    def _look(self, answers: Answers) -> tuple[States, Mapping[str, bool]]:
        """What is on the host, of each repository and of the paths that tests take to be there."""
        queries: dict[str, list[str]] = {}
        listings = [answer if isinstance(answer, Listing) else answer.last for answer in answers]
        for number, ((repository, place), listing) in enumerate(zip(self.needs.repositories, listings, strict=True)):
            if listing and place.path:
                queries[str(number)] = files_query(repository, place.path, listing)
        if paths := [place.path for _, place in self.needs.paths if place.path]:
            queries["paths"] = python_query(_PATHS, *paths)
        results = self.executor.run_queries(queries, _QUERY_TIMEOUT) if queries else {}
        states = [
            host_state(results[str(number)], listing) if listing and str(number) in results else None
            for number, listing in enumerate(listings)
        ]
        exist = parse_json_object(results["paths"]) if paths else {}
        return states, {path: exists is True for path, exists in exist.items()}

    def _status(
        self,
        hub: Hub,
        key: tuple[HubRepository, HostPath],
        answer: Listing | Refusal,
        state: HostState | HubError | None,
    ) -> RepositoryStatus:
        """`state` is None where there is no directory that outlives a run, or nothing to compare it with."""
        (repository, place), asked = key, self.needs.repositories[key]
        line = RepositoryStatus(
            kind=repository.kind,
            id=repository.id,
            name=repository.name,
            revision=repository.revision,
            path=repository.directory,
            directory=place.path,
            state=MISSING if place.path else NOT_KEPT,
            rows=tuple(asked.rows),
            where=tuple(asked.where),
            message=place.why,
        )
        listing = answer if isinstance(answer, Listing) else answer.last
        is_there = isinstance(state, HostState) and state.word == THERE
        if isinstance(answer, Refusal) and not is_there:
            return _refused(line, answer.error, hub, repository)
        assert listing is not None
        size = sum(listing.files.values())
        line = replace(line, commit=listing.commit, size=size, missing=size)
        if isinstance(state, HubError):
            return _refused(line, state, hub, repository)
        if state is not None:
            line = replace(line, state=state.word, missing=state.missing, mount=state.mount)
        if isinstance(answer, Refusal):  # nobody knows what the hub has now; a test's own download takes what is there
            message = f"{answer.error.message}; everything that the hub listed last time is there"
            return replace(line, message=message)
        return line if answer.closed is None or is_there else _refused(line, answer.closed, hub, repository)

    def _downloads(self, lines: Sequence[RepositoryStatus], answers: Answers, states: States) -> Iterator[Download]:
        for number, ((repository, place), answer) in enumerate(zip(self.needs.repositories, answers, strict=True)):
            line = lines[number]
            if line.problem or line.state == THERE or states[number] is None or isinstance(answer, Refusal):
                continue
            run, env = self.needs.runs[line.rows[0]]
            inside = run if is_inside(run, self.spec) else None
            yield Download(number, repository, place.path or "", list(answer.files), inside, env)

    def _download(
        self, hub: Hub, downloads: Sequence[Download], lines: list[RepositoryStatus], answers: Answers
    ) -> str:
        """Bring them, and note in `lines` how each ended. Returns the path of the log."""
        needs_token = any(isinstance(answer, Listing) and answer.needs_token for answer in answers)
        values = {}
        if hub.token and (needs_token or _TOKEN in self.spec.secrets or self.spec.kind == "local"):
            values[_TOKEN] = hub.token
        if "@" in hub.endpoint:
            values["HF_ENDPOINT"] = hub.endpoint
        row = self._prepared(downloads, hub.endpoint, values)
        self.executor.write_plan(row.run, row.plan)

        def progress(number: int, message: str) -> None:
            line = lines[number]
            self.progress(f"{line.name} ({human(line.missing or 0)}) to {line.directory}", message)

        end = run_downloads(self.executor, row, self.progress.say, progress, self.is_wanted)
        if end.aborted:
            raise Blocked(f"prefetch on {self.spec.name}: {end.aborted[1]}", hint=f"its log is {row.run.log}")
        log = content_of(row.run.log).decode("utf-8", "replace")
        ended, states = outcomes(log), self._look(answers)[0]
        for download in downloads:
            line, state = lines[download.number], states[download.number]
            code, output = ended.get(download.number, (read_json(row.run.status).get("exit_code"), log))
            error = download_error(line.name, code, output, state.absent if isinstance(state, HostState) else 0)
            lines[download.number] = (
                _refused(line, error, hub, download.repository) if error else replace(line, state=FETCHED, missing=0)
            )
        return row.run.log

    def _prepared(self, downloads: Sequence[Download], endpoint: str, values: Mapping[str, str]) -> PreparedRow:
        """The run that downloads. It has neither checkout nor GPU."""
        spec, run = self.spec, RunDir(str(self.batch.path / f"prefetch-{self.spec.name}"))
        Path(run.path).mkdir(parents=True, exist_ok=True)
        paths = self.executor.paths(run)
        env = {**spec.env, **({"HF_ENDPOINT": endpoint} if endpoint != DEFAULT and "@" not in endpoint else {})}
        id = f"{self.batch.id}.prefetch"
        home = str(store.home()) if spec.kind == "local" else spec.workspace
        plan = Plan(
            id=id,
            label=self.row.label,
            job=self.row.job,
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


def _refused(line: RepositoryStatus, error: HubError, hub: Hub, repository: HubRepository) -> RepositoryStatus:
    return replace(line, problem=error.code, message=error.message, hint=hub.hint(error.code, repository))


def files_query(repository: HubRepository, directory: str, listing: Listing) -> list[str]:
    in_cache = repository.layout == CACHE
    top = posixpath.join(directory, repository.folder) if in_cache else directory
    query = [top, f"snapshots/{listing.commit}" if in_cache else "", listing.commit, [*listing.files]]
    text = base64.b64encode(zlib.compress(json.dumps(query).encode())).decode()
    return python_query(_FILES, *(text[at : at + _LONGEST] for at in range(0, len(text), _LONGEST)))


def host_state(answer: QueryAnswer, listing: Listing) -> HostState | HubError:
    """The answer to `files_query`."""
    said = parse_json_object(answer)
    try:
        counts, missing = {True: 0, False: 0, None: 0}, 0
        for size, entry in zip(listing.files.values(), said["files"], strict=True):
            sure = bool(entry[1]) if entry and entry[0] == size else None
            counts[sure] += 1
            missing += size if sure is None else 0
        return HostState(str(said["mount"]), int(said["free"]), counts[True], counts[False], counts[None], missing)
    except (KeyError, TypeError, ValueError, IndexError):
        return HubError("denied", f"the host cannot say what is there: {answer.last_line}")


def _mounts(lines: Sequence[RepositoryStatus], states: States) -> list[MountSpace]:
    free = {state.mount: state.free for state in states if isinstance(state, HostState)}
    coming = [line for line in lines if not line.problem]
    return [
        MountSpace(mount, space, sum(line.missing or 0 for line in coming if line.mount == mount), SPARE)
        for mount, space in sorted(free.items())
    ]
