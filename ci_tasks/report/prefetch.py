"""What a label's tests ask a model hub for, as lines: each repository, its place, and what stands in its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ci_tasks.report.table import columns
from ci_tasks.runner.hub.refused import CODES
from ci_tasks.runner.hub.sizes import human

THERE, PARTLY, MISSING, FETCHED, LOST = "there", "partly", "missing", "fetched", "not kept"
# What a person reads for a refusal's code.
WORDS = {
    **{code: code for code in CODES},
    "unauthorised": "no access",
    "missing": "not found",
    "limited": "rate limit",
    "full": "disk full",
    "trouble": "hub trouble",
    "denied": "not writable",
    "hostile": "unsafe name",
    "checksum": "bad checksum",
}


@dataclass(frozen=True)
class Line:
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
class Mount:
    """A mount of the host, with what it has free and what is still to come, in bytes."""

    mount: str
    free: int
    needed: int
    spare: int

    @property
    def fits(self) -> bool:
        return self.needed == 0 or self.needed <= self.free - self.spare


@dataclass(frozen=True)
class Path:
    """A path that tests take to be there. `there` is None where it cannot be seen from the host."""

    path: str
    directory: str | None
    there: bool | None
    rows: tuple[str, ...]
    where: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A download that the source alone does not settle."""

    where: str
    text: str
    why: str
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Stock:
    """Everything of one label on one host."""

    host: str
    endpoint: str
    repositories: tuple[Line, ...] = ()
    mounts: tuple[Mount, ...] = ()
    expected: tuple[Path, ...] = ()
    unresolved: tuple[Question, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def blocked(self) -> bool:
        """Whether a run would lack something that prefetching cannot bring."""
        return (
            any(line.problem for line in self.repositories)
            or any(not mount.fits for mount in self.mounts)
            or any(path.there is False for path in self.expected)
        )


def text(stock: Stock) -> list[str]:
    """The table, what each problem asks for, the mounts, and what the source leaves open."""
    if not stock.repositories and not stock.unresolved and not stock.expected:
        return ["no test of these rows asks a hub for anything"]
    lines: list[str] = []
    if stock.repositories:
        head = ("STATE", "REPOSITORY", "REVISION", "SIZE", "ROWS", f"ON {stock.host.upper()}")
        lines += columns([head, *(_cells(line) for line in stock.repositories)])
    for line in stock.repositories:
        if line.problem:
            lines += ["", f"{line.message}", f"  → {line.hint}", f"  asked for by {_first(line.where)}"]
    told = dict.fromkeys(line.message for line in stock.repositories if line.state == THERE and line.message)
    lines += ["", *told] if told else []
    lines += ["", *(_mount(mount) for mount in stock.mounts)] if stock.mounts else []
    lines += _lost(stock)
    for path in stock.expected:
        lines += ["", _path(path), f"  → asked for by {_first(path.where)}; no download of the test makes it"]
    if stock.unresolved:
        lines += ["", "not known from the source alone:"]
        lines += [f"  {one.where}: {one.text}\n    {one.why}" for one in stock.unresolved]
    return [*lines, *(("", *stock.notes) if stock.notes else ())]


def summary(stock: Stock) -> str:
    """`15 repositories: 12 there, 3 fetched`, for the last line."""
    counts: dict[str, int] = {}
    for line in stock.repositories:
        counts[_state(line)] = counts.get(_state(line), 0) + 1
    lack = sum(path.there is False for path in stock.expected)
    many = f"{len(stock.repositories)} repositor{'y' if len(stock.repositories) == 1 else 'ies'}"
    said = ", ".join(f"{count} {state}" for state, count in counts.items())
    more = [f"{lack} path{'' if lack == 1 else 's'} missing"] if lack else []
    open_ = [f"{len(stock.unresolved)} unresolved"] if stock.unresolved else []
    return "; ".join([f"{many}: {said}" if said else many, *more, *open_])


def _state(line: Line) -> str:
    return WORDS.get(line.problem, line.problem) if line.problem else line.state


def _cells(line: Line) -> tuple[str, ...]:
    size = "-" if line.size is None else human(line.size)
    if line.state == PARTLY and line.missing is not None and not line.problem:
        size += f", {human(line.missing)} to come"
    name = line.name + (f" ({line.gated} gate)" if line.gated and not line.problem else "")
    revision = line.revision + (f"@{line.commit[:8]}" if line.commit and line.commit != line.revision else "")
    return (_state(line), name, revision, size, str(len(line.rows)), line.directory or "-")


def _mount(mount: Mount) -> str:
    said = f"{mount.mount}: {human(mount.free)} free, {human(mount.needed)} to come"
    return said if mount.fits else f"{said}: too little, since {human(mount.spare)} stay free\n  → make room there"


def _lost(stock: Stock) -> list[str]:
    found = dict.fromkeys(f"{line.path}: {line.message}" for line in stock.repositories if line.state == LOST)
    return ["", *(f"not fetched ahead: {one}" for one in found)] if found else []


def _path(path: Path) -> str:
    if path.there is None:
        return f"{path.path} must be in the image: no mount of the container holds it"
    return f"{path.path} ({path.directory}) is {'there' if path.there else 'missing'}"


def _first(where: Sequence[str]) -> str:
    return where[0] + (f" and {len(where) - 1} more" if len(where) > 1 else "")
