"""What a label's tests ask a model hub for, as lines: each repository, its place, and what stands in its way."""

from __future__ import annotations

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import some
from ci_tasks.report.table import Table, paragraph

THERE, PARTLY, MISSING, FETCHED, NOT_KEPT = "there", "partly", "missing", "fetched", "not kept"
# What a person reads for a refusal's code, where that is not the code itself.
_NAMES = {
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
    nothing there outlives a run. Sizes are bytes; `problem` is why it cannot be had, as a code, "" for none."""

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
    problem: str = ""
    message: str = ""
    hint: str = ""

    @property
    def word(self) -> str:
        return _NAMES.get(self.problem, self.problem) or self.state


@dataclass(frozen=True)
class MountSpace:
    """A mount of the host, with what it has free and what is still to come, in bytes; `spare` has to stay free."""

    mount: str
    free: int
    needed: int
    spare: int

    @property
    def fits(self) -> bool:
        return self.needed == 0 or self.needed <= self.free - self.spare


@dataclass(frozen=True)
class Unresolved:
    """A download that a test does not settle: its place in the test, its words, why, and the rows that run it."""

    where: str
    text: str
    why: str
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class PrefetchReport:
    host: str
    endpoint: str
    repositories: tuple[RepositoryStatus, ...] = ()
    mounts: tuple[MountSpace, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_blocked(self) -> bool:
        """Whether a run would lack something that prefetching cannot bring."""
        return any(line.problem for line in self.repositories) or not all(mount.fits for mount in self.mounts)


def text(report: PrefetchReport, width: int | None = None) -> list[str]:
    """The table, what each problem asks for, the mounts, what the source leaves open, and a summary."""
    if not report.repositories and not report.unresolved:
        return ["no test of these rows asks a hub for anything"]
    blocks: list[list[str]] = []
    if report.repositories:
        head = ("STATE", "REPOSITORY", "REVISION", "SIZE", "ROWS", f"ON {report.host.upper()}")
        blocks.append(Table([*map(_cells, report.repositories)], head).text(width))
    asked: dict[tuple[str, str], list[str]] = {}
    for line in report.repositories:
        if line.problem:
            asked.setdefault((line.message, line.hint), []).append(f"  asked for by {some(line.where, 1)}")
    for (message, hint), places in asked.items():
        blocks.append([*paragraph(message, width), *paragraph(f"→ {hint}", width, "  "), *dict.fromkeys(places)])
    blocks.append([_mount(mount) for mount in report.mounts])
    not_kept = (line for line in report.repositories if line.state == NOT_KEPT)
    blocks.append([*dict.fromkeys(f"not fetched ahead: {line.path}: {line.message}" for line in not_kept)])
    if report.unresolved:
        lines = [f"  {each.where}: {each.text}\n    {each.why}" for each in report.unresolved]
        blocks.append(["not known from the source alone:", *lines])
    blocks += [[*report.notes], [_summary(report)]]
    return [line for block in blocks if block for line in (*block, "")][:-1]


def _summary(report: PrefetchReport) -> str:
    """`15 repositories: 12 there, 3 fetched`"""
    words = [line.word for line in report.repositories]
    states = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    unresolved = f"; {len(report.unresolved)} unresolved" if report.unresolved else ""
    return f"{len(words)} repositor{'y' if len(words) == 1 else 'ies'}{f': {states}' if states else ''}{unresolved}"


def _cells(line: RepositoryStatus) -> tuple[str, ...]:
    size = "-" if line.size is None else human(line.size)
    if line.state == PARTLY and line.missing is not None and not line.problem:
        size += f", {human(line.missing)} to come"
    revision = line.revision + (f"@{line.commit[:8]}" if line.commit and line.commit != line.revision else "")
    return (line.word, line.name, revision, size, str(len(line.rows)), line.directory or "-")


def _mount(mount: MountSpace) -> str:
    said = f"{mount.mount}: {human(mount.free)} free, {human(mount.needed)} to come"
    return said if mount.fits else f"{said}: too little, since {human(mount.spare)} stay free\n  → make room there"


def human(count: float) -> str:
    """Bytes in the unit that people use: 3.2 GB."""
    if abs(count) < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000.0
        if abs(count) < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000.0:.1f} TB"
