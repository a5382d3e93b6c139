"""Where a command's rows run. Flows speak to a Site and never ask which kind it is: this machine, or a box over SSH."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ci_tasks.hosts.ask import Answer
    from ci_tasks.model import Checkout, HostSpec, Plan, Row
    from ci_tasks.plan.capacity import HostFacts
    from ci_tasks.plan.planner import Setup
    from ci_tasks.runner.layout import RunDir
    from ci_tasks.runs.store import Batch

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """A row ready to start: its plan, directory and setup. `lacks` says why it cannot run here."""

    row: Row
    plan: Plan
    run: RunDir
    setup: Setup | None
    site: Site
    lacks: tuple[str, ...] = ()
    could: tuple[str, ...] = ()


@dataclass(frozen=True)
class Look:
    """How a started run stands. `over`: everything of it is here. `never`: status and reason of one that has no end of
    its own. `begun`: it runs, with or without us. `note`: what it does just now, if that is not running."""

    over: bool = False
    begun: bool = True
    never: tuple[str, str] | None = None
    note: str = ""


class Code(Protocol):
    """The tree that runs, as it was when the command began."""

    @property
    def checkout(self) -> Checkout: ...

    def read(self, path: str) -> str | None:
        """The text of a file, or None where the tree has none of that name."""
        ...

    def texts(self, directory: str, suffix: str) -> Iterator[str]:
        """The texts of the files right in `directory` whose names end so."""
        ...


class Site(Protocol):
    """A host for the rows of one batch. Methods raise Blocked for what the host cannot do."""

    spec: HostSpec

    @property
    def lock_dir(self) -> str:
        """The directory there of pretend GPUs' locks."""
        ...

    @property
    def is_up(self) -> bool:
        """Whether the host can be spoken to just now."""
        ...

    @property
    def queues(self) -> bool:
        """Whether the host has a scheduler of its own, which decides when a row that was begun starts."""
        ...

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        """What the host offers; `gpus` is how many the widest row wants, 0 where nobody does."""
        ...

    def ask(self, questions: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, Answer]:
        """The answers of programs of the host."""
        ...

    def python(self, wanted: str) -> tuple[str, str]:
        """(path, version) of the interpreter that setup-python's version means there."""
        ...

    def expect(self, source: Path, *, rev: str | None, base: str | None) -> None:
        """`take` will ask for these: what can begin while the rows are found does. Its problems are `take`'s."""
        ...

    def share(self, code: Code) -> None:
        """`take` may use what another host of the command took."""
        ...

    def take(self, batch: Batch, source: Path, *, rev: str | None, base: str | None) -> Code:
        """The working tree of `source`, or its revision, for the rows of `batch`. Comes before all else of runs."""
        ...

    def path(self, run: RunDir) -> str:
        """Where the run directory is on the host."""
        ...

    def environments(self, *, shared: bool) -> str:
        """The directory there of the venvs that rows share."""
        ...

    def write(self, run: RunDir, plan: Plan) -> None:
        """Put the plan into the run directory."""
        ...

    def hand_over(self, rows: Sequence[Prepared]) -> None:
        """Make what `run.sh` needs to be run by hand, where that is here; the site itself is done."""
        ...

    def ready(
        self, setups: Sequence[Setup], reuse: bool, say: Say, wanted: Callable[[], bool] = lambda: True
    ) -> AbstractContextManager[str | None]:
        """Run the install steps that rows share. Gives why they failed; the rows run inside of the block.

        Raises KeyboardInterrupt once nobody wants it any more, which a thread hears of only so."""
        ...

    def begin(self, row: Prepared) -> None:
        """Start a row."""
        ...

    def rejoin(self, row: Prepared) -> None:
        """Come back to a row that an earlier command began."""
        ...

    def look(self, row: Prepared) -> Look: ...

    def wait(self, seconds: float) -> None:
        """Until something is heard of the rows, if the site can tell, or for so long."""
        ...

    def end(self, rows: Iterable[Prepared], *, kill: bool) -> None:
        """Ask for the end of rows that run; `kill` waits for nothing."""
        ...

    def settled(self, row: Prepared) -> None:
        """The row has its record: what is left of it can go."""
        ...

    def leave(self) -> None:
        """Let what runs go on without us."""
        ...

    def told(self) -> list[str]:
        """What a person should hear of the host since the last call."""
        ...

    def close(self) -> None: ...


def secrets_of(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The values of a plan's secrets, as far as the caller has them."""
    return {name: environ[name] for name in names if name in environ}


OpenSite = Callable[["HostSpec"], Site]
