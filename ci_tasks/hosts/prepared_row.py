"""A row that a host is to run, how it stands there, and its code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from ci_tasks.agent.quick_dataclass import dataclass

if TYPE_CHECKING:
    from ci_tasks.agent.records import Checkout, Plan
    from ci_tasks.agent.run_directory import RunDir
    from ci_tasks.planning.planner import SharedSetup
    from ci_tasks.workflow.model import Row

Say = Callable[[str], None]


@dataclass(frozen=True)
class PreparedRow:
    """A row ready to start: its plan, run directory and shared setup. `missing` says what the host lacks for it,
    `alternative_hosts` which hosts could run it. `secrets` are values that are not in our environment."""

    row: Row
    plan: Plan
    run: RunDir
    setup: SharedSetup | None
    missing: tuple[str, ...] = ()
    alternative_hosts: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def has_own_checkout(self) -> bool:
        """Whether it gets one when it begins: without a setup that has one, and unless it needs none."""
        return self.setup is None and bool(self.plan.workspace)


@dataclass(frozen=True)
class RunState:
    """The state of a started run. `is_complete`: it ended and its files are here. `aborted`: status and reason of
    a run that has no end of its own. `has_started`: it goes on without us. `note`: its phase, if not running."""

    is_complete: bool = False
    has_started: bool = True
    aborted: tuple[str, str] | None = None
    note: str = ""

    @property
    def is_over(self) -> bool:
        return self.is_complete or self.aborted is not None


class CodeSnapshot(Protocol):
    """The tree that runs, as it was when the command started."""

    @property
    def checkout(self) -> Checkout: ...

    def read_file(self, path: str) -> str | None:
        """The text of a file, or None if it does not exist."""
        ...

    def read_files(self, directory: str, suffix: str) -> Iterator[str]:
        """The texts of the files directly in `directory` whose names end in `suffix`."""
        ...


def secrets_of(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The values of a plan's secrets, as far as the caller has them."""
    return {name: environ[name] for name in names if name in environ}
