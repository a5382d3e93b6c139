"""What a label's tests ask a model hub for, as lines: each repository, its place, and what stands in its way."""

from __future__ import annotations

from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted, some
from ci_tasks.report.table import Table, paragraph

THERE, PARTLY, MISSING, FETCHED, NOT_KEPT = "there", "partly", "missing", "fetched", "not kept"
# What a person reads for a refusal's code, where that is not the code itself.
STATE_NAMES = {
    "unauthorised": "no access",
    "missing": "not found",
    "limited": "rate limit",
    "full": "disk full",
    "trouble": "download failed",
    "denied": "not writable",
    "hostile": "unsafe name",
    "checksum": "bad checksum",
}


@dataclass(frozen=True)
class RepositoryStatus:
    """One repository. `path` is the test's own name of the directory, `directory` where that is on the host, None where
    nothing there outlives a run. Sizes are bytes; `problem` is a refusal's code, "" for none."""

    kind: str
    id: str
    revision: str
    commit: str | None
    path: str
    directory: str | None
    state: str
    size: int | None
    missing: int | None
    gated: str
    private: bool
    mount: str | None
    rows: tuple[str, ...]
    where: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    problem: str = ""
    message: str = ""
    hint: str = ""

    @property
    def name(self) -> str:
        return f"{self.id} (dataset)" if self.kind == "dataset" else self.id


@dataclass(frozen=True)
class MountSpace:
    """A mount of the host, with what it has free and what is still to come, in bytes."""

    mount: str
    free: int
    needed: int
    spare: int

    @property
    def fits(self) -> bool:
        return self.needed == 0 or self.needed <= self.free - self.spare


@dataclass(frozen=True)
class PathStatus:
    """A path that tests take to be there. `there` is None where it cannot be seen from the host."""

    path: str
    directory: str | None
    there: bool | None
    rows: tuple[str, ...]
    where: tuple[str, ...]


@dataclass(frozen=True)
class UnresolvedInRows:
    """A download that the source alone does not settle."""

    where: str
    text: str
    why: str
    rows: tuple[str, ...]


@dataclass(frozen=True)
class PrefetchReport:
    host: str
    endpoint: str
    repositories: tuple[RepositoryStatus, ...] = ()
    mounts: tuple[MountSpace, ...] = ()
    expected: tuple[PathStatus, ...] = ()
    unresolved: tuple[UnresolvedInRows, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def is_blocked(self) -> bool:
        return (
            any(line.problem for line in self.repositories)
            or any(not mount.fits for mount in self.mounts)
            or any(path.there is False for path in self.expected)
        )


def text(report: PrefetchReport, width: int | None = None) -> list[str]:
    """The table, what each problem asks for, the mounts, and what the source leaves open."""
    if not report.repositories and not report.unresolved and not report.expected:
        return ["no test of these rows asks a hub for anything"]
    lines: list[str] = []
    if report.repositories:
        head = ("STATE", "REPOSITORY", "REVISION", "SIZE", "ROWS", f"ON {report.host.upper()}")
        lines += Table([_cells(line) for line in report.repositories], head).text(width)
    lines += _problems(report, width)
    messages = dict.fromkeys(line.message for line in report.repositories if line.state == THERE and line.message)
    lines += ["", *messages] if messages else []
    lines += ["", *(_mount(mount) for mount in report.mounts)] if report.mounts else []
    lines += _not_kept(report)
    for path in report.expected:
        lines += ["", _path(path), f"  → asked for by {some(path.where, 1)}; no download of the test makes it"]
    if report.unresolved:
        lines += ["", "not known from the source alone:"]
        lines += [f"  {download.where}: {download.text}\n    {download.why}" for download in report.unresolved]
    return [*lines, *(("", *report.notes) if report.notes else ())]


def _problems(report: PrefetchReport, width: int | None) -> list[str]:
    askers: dict[tuple[str, str], list[str]] = {}
    for line in report.repositories:
        if line.problem:
            askers.setdefault((line.message, line.hint), []).append(some(line.where, 1))
    lines: list[str] = []
    for (message, hint), places in askers.items():
        lines += ["", *paragraph(message, width), *paragraph(f"→ {hint}", width, "  ")]
        lines += [f"  asked for by {place}" for place in dict.fromkeys(places)]
    return lines


def summary(report: PrefetchReport) -> str:
    """`15 repositories: 12 there, 3 fetched`, for the last line."""
    counts: dict[str, int] = {}
    for line in report.repositories:
        counts[_state(line)] = counts.get(_state(line), 0) + 1
    lack = sum(path.there is False for path in report.expected)
    many = f"{len(report.repositories)} repositor{'y' if len(report.repositories) == 1 else 'ies'}"
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    more = [f"{counted(lack, 'path')} missing"] if lack else []
    open_ = [f"{len(report.unresolved)} unresolved"] if report.unresolved else []
    return "; ".join([f"{many}: {states}" if states else many, *more, *open_])


def _state(line: RepositoryStatus) -> str:
    return STATE_NAMES.get(line.problem, line.problem) if line.problem else line.state


def _cells(line: RepositoryStatus) -> tuple[str, ...]:
    size = "-" if line.size is None else human(line.size)
    if line.state == PARTLY and line.missing is not None and not line.problem:
        size += f", {human(line.missing)} to come"
    name = line.name + (f" ({line.gated} gate)" if line.gated and not line.problem else "")
    revision = line.revision + (f"@{line.commit[:8]}" if line.commit and line.commit != line.revision else "")
    return (_state(line), name, revision, size, str(len(line.rows)), line.directory or "-")


def _mount(mount: MountSpace) -> str:
    message = f"{mount.mount}: {human(mount.free)} free, {human(mount.needed)} to come"
    return (
        message if mount.fits else f"{message}: too little, since {human(mount.spare)} stay free\n  → make room there"
    )


def _not_kept(report: PrefetchReport) -> list[str]:
    messages = dict.fromkeys(f"{line.path}: {line.message}" for line in report.repositories if line.state == NOT_KEPT)
    return ["", *(f"not fetched ahead: {message}" for message in messages)] if messages else []


def _path(path: PathStatus) -> str:
    if path.there is None:
        return f"{path.path} must be in the image: no mount of the container holds it"
    return f"{path.path} ({path.directory}) is {'there' if path.there else 'missing'}"


def human(count: float) -> str:
    """Bytes in the unit that people use: 3.2 GB."""
    if abs(count) < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000.0
        if abs(count) < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000.0:.1f} TB"
