"""A run on another host, as those who send it, watch it and bring it home speak of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import CheckoutPart, RemoteLocation
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.config import HostSpec
from ci_tasks.hosts.mirror import MirroredFiles, RunHere, RunMirror
from ci_tasks.records import Plan

SENDING, WATCHING, FETCHING, CLEARING, DONE = "sending", "running", "fetching", "clearing", "done"
CANCEL, KILL = "cancel", "kill"


@dataclass(frozen=True)
class CodePack:
    """A part of the code: `make(have)` gives its objects less those of the trees that the host has; `sent` is called
    when it is there."""

    tree: str
    build: Callable[[Sequence[str]], Iterable[bytes]]
    known_trees: tuple[str, ...] = ()
    mark_sent: Callable[[], None] = lambda: None


@dataclass
class RemoteRun:
    """One run on the host. `directory` is its run directory there; `parts` name its checkout; `sbatch_script` is what a
    cluster gets for it. `is_here`: the host is this machine and the run directory is `run`, so that nothing is sent,
    fetched or cleared away."""

    run: RunDir
    directory: str
    plan: Plan = field(default_factory=Plan)
    script: str = ""
    sbatch_script: str = ""
    parts: Sequence[CheckoutPart] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_here: bool = False
    keep_remote: bool = False  # its directory there is not cleared away at the end
    keep_shared_files: bool = False  # with rows that may be yet to come; whoever began them clears that away
    phase: str = SENDING
    aborted: tuple[str, str] | None = None  # status and reason of a run that has no end of its own here
    warning: str = ""  # what a person should know although the run has its end
    mirror: RunMirror | RunHere | None = None
    lock: MirroredFiles | None = None
    key: int = 0
    cancel_requested: str = ""  # CANCEL or KILL
    cancel_sent: str = ""
    was_sent: bool = False  # the host may have heard of it
    code_resent: bool = False
    refetched: bool = False
    detached: bool = False

    @property
    def is_fetched(self) -> bool:
        """Whether everything that is to come of the run is here."""
        return self.phase in (CLEARING, DONE)


def write_remote_location(run: RunDir, spec: HostSpec, directory: str, *, adopted: bool = False) -> None:
    """Note in the mirror where the run is, before anything is sent: whoever comes later finds it. An adopted one was
    begun by somebody else, who will want to bring it home as well."""
    os.makedirs(run.path, exist_ok=True)
    where = RemoteLocation(
        spec.name, spec.kind, spec.address, spec.workspace, directory, adopted=adopted, persist=spec.persist
    )
    write_record(run.remote, where)
