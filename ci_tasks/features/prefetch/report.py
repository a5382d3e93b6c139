"""What a label's tests ask a model hub for, as lines: each repository, its place, and what stands in its way."""

from __future__ import annotations

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import one_line, shortened, some
from ci_tasks.report.table import Table, paragraph

THERE, PARTLY, MISSING, FETCHED, NOT_KEPT = "there", "partly", "missing", "fetched", "not kept"
# What keeps a repository from a run.
GATED, NOT_FOUND, OFFLINE, UNSAFE = "gated", "not found", "offline", "unsafe name"
DISK_FULL, FAILED = "disk full", "download failed"
_LONGEST = 100  # characters of a command that is not understood


@dataclass(frozen=True)
class RepositoryStatus:
    """One repository. `path` is the test's own name of the directory, `directory` where that is on the host, None if
    nothing there outlives a run, and `mount` the disk with `free` bytes. Sizes are bytes; `problem` is why it cannot be
    had, "" for none."""

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


@dataclass(frozen=True)
class Unresolved:
    """A download that a test does not settle: its place in the test, its words, why, and the rows that run it."""

    where: str
    text: str
    why: str
    rows: tuple[str, ...] = ()


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


def text(report: PrefetchReport, width: int | None = None) -> list[str]:
    """The table, what each problem asks for, the mounts, what the source leaves open, and a summary."""
    if not report.repositories and not report.unresolved:
        return ["no test of these rows asks a hub for anything"]
    head = ("STATE", "REPOSITORY", "REVISION", "SIZE", "ROWS", f"ON {report.host.upper()}")
    blocks = [Table([*map(_cells, report.repositories)], head).text(width)]
    for line in {line.message: line for line in report.repositories if line.problem}.values():
        places = f"  asked for by {some(line.where, 1)}"
        blocks.append([*paragraph(line.message, width), *paragraph(f"→ {line.hint}", width, "  "), places])
    not_kept = (line for line in report.repositories if line.state == NOT_KEPT)
    blocks.append([*dict.fromkeys(f"not fetched ahead: {line.path}: {line.message}" for line in not_kept)])
    if report.unresolved:
        lines = [
            f"  {each.where}: {shortened(one_line(each.text), _LONGEST)}\n    {each.why}" for each in report.unresolved
        ]
        blocks.append(["not known from the source alone:", *lines])
    words = [line.problem or line.state for line in report.repositories]
    states = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    noun = "repository" if len(words) == 1 else "repositories"
    blocks += [[*report.notes], [f"{len(words)} {noun}{f': {states}' if states else ''}"]]
    return [line for block in blocks if block for line in (*block, "")][:-1]


def _cells(line: RepositoryStatus) -> tuple[str, ...]:
    size = "-" if line.size is None else human(line.size)
    if line.state == PARTLY and line.missing and not line.problem:
        size += f", {human(line.missing)} to come"
    revision = line.revision + (f"@{line.commit[:8]}" if line.commit and line.commit != line.revision else "")
    return (line.problem or line.state, line.name, revision, size, str(len(line.rows)), line.directory or "-")


def human(count: float) -> str:
    """Bytes as people read them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
