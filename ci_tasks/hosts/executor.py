"""The interface to a host that runs rows. Callers do not know which kind it is: local, SSH or Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ci_tasks.agent.quick_dataclass import dataclass

if TYPE_CHECKING:
    from ci_tasks.agent.records import QueryAnswer
    from ci_tasks.agent.run_directory import RunDir
    from ci_tasks.background import Background
    from ci_tasks.checkout.snapshot import Snapshot
    from ci_tasks.config import HostSpec
    from ci_tasks.given_values import OverlaySource
    from ci_tasks.hosts.host_snapshot import RemoteSnapshot
    from ci_tasks.planning.capacity import HostFacts
    from ci_tasks.planning.planner import SharedSetup
    from ci_tasks.records import Checkout, Plan
    from ci_tasks.results.store import Batch
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
    executor: Executor
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


class Executor(Protocol):
    """A host for the rows of one batch. Methods raise Blocked for what the host cannot do."""

    spec: HostSpec

    @property
    def lock_dir(self) -> str:
        """The host's directory for the locks of simulated GPUs."""
        ...

    @property
    def is_up(self) -> bool:
        """Whether there is a connection to the host."""
        ...

    @property
    def has_scheduler(self) -> bool:
        """Whether the host has a scheduler, such as Slurm, which decides when a submitted row starts."""
        ...

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        """What the host offers; `gpus` is the highest number that a row needs."""
        ...

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        """Run commands on the host at the same time; their outputs by name. `timeout` is in seconds."""
        ...

    def find_python(self, version_spec: str) -> tuple[str, str]:
        """(path, version) of the host's interpreter for a version of setup-python."""
        ...

    def use_snapshot(self, snapshot: Background[Snapshot]) -> None:
        """A snapshot that is being made, see start_host_snapshot: `snapshot` returns it, or raises its errors. A host
        that gets a clone instead needs none."""
        ...

    def reuse_snapshot(self, code: CodeSnapshot) -> None:
        """Let `snapshot` use one that was made for another host."""
        ...

    def snapshot(
        self,
        batch: Batch,
        source: Path,
        *,
        rev: str | None,
        base: str | None,
        overlays: Sequence[OverlaySource] = (),
    ) -> CodeSnapshot:
        """The working tree of `source`, or its revision `rev`, for the rows of `batch`. Called before any run."""
        ...

    def snapshot_for_retry(self, batch: Batch, source: Path) -> RemoteSnapshot:
        """The working tree of `source` for a row that goes on in the workspace that an earlier run kept."""
        ...

    def run_directory(self, run: RunDir) -> str:
        """The path of the run directory on the host."""
        ...

    def environments_directory(self) -> str:
        """The host's directory for the venvs that rows of the batch share."""
        ...

    @property
    def environment_store(self) -> str:
        """The host's directory for the environments that all runs share."""
        ...

    def write_plan(self, run: RunDir, plan: Plan) -> None:
        """Put the plan into the run directory."""
        ...

    def prepare_manual_run(self, rows: Sequence[PreparedRow]) -> None:
        """Make the checkouts and venvs that `run.sh` needs when a person runs it. Nothing is called afterwards."""
        ...

    def keep_environments(self) -> None:
        """Rows will be repeated: `prepare_environments` may be called again, until the executor is closed."""
        ...

    def prepare_environments(
        self, setups: Sequence[SharedSetup], say: Say, should_continue: Callable[[], bool] = lambda: True
    ) -> AbstractContextManager[str | None]:
        """Run the install steps that rows share. Yields why they failed, or None; rows run inside of the block.

        After `keep_environments`, steps that were run before are not run again: what they made is as they left it.
        Raises KeyboardInterrupt when `should_continue` returns False: a thread gets no ^C."""
        ...

    def start(self, row: PreparedRow) -> None:
        """Start a row."""
        ...

    def reattach(self, row: PreparedRow) -> None:
        """Watch a row that an earlier command started."""
        ...

    def poll(self, row: PreparedRow) -> RunState: ...

    def wait(self, seconds: float) -> None:
        """Wait for a change of a row's state, at most so long."""
        ...

    def cancel(self, rows: Iterable[PreparedRow], *, kill: bool) -> None:
        """Cancel rows; `kill` sends SIGKILL at once."""
        ...

    def release(self, row: PreparedRow) -> None:
        """Remove what the row no longer needs: its record is written."""
        ...

    def release_retried(self, row: PreparedRow) -> list[str]:
        """Remove what the runs kept that a retry went on from. Returns a line for each thing that is left."""
        ...

    def detach(self) -> None:
        """Stop watching; the runs go on."""
        ...

    def drain_messages(self) -> list[str]:
        """Messages for the user since the last call, such as a lost connection."""
        ...

    def close(self) -> None: ...


def secrets_of(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The values of a plan's secrets, as far as the caller has them."""
    return {name: environ[name] for name in names if name in environ}


OpenExecutor = Callable[["HostSpec"], Executor]
