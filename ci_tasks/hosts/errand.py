"""A run on another host, as those who send it, watch it and bring it home speak of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ci_tasks.hosts.mirror import Held, Mirror, note
from ci_tasks.model import HostSpec
from ci_tasks.runner.layout import RunDir

SENDING, WATCHING, FETCHING, CLEARING, DONE = "sending", "running", "fetching", "clearing", "done"
CANCEL, KILL = "cancel", "kill"


@dataclass(frozen=True)
class Pack:
    """A part of the code: `make(have)` gives its objects less those of the trees that the host has; `sent` is called
    when it is there."""

    tree: str
    make: Callable[[Sequence[str]], Iterable[bytes]]
    have: tuple[str, ...] = ()
    sent: Callable[[], None] = lambda: None


@dataclass
class Errand:
    """One run on the host. `directory` is its run directory there; `parts` name its checkout; `batch` is the script
    that a cluster gets for it, empty on a box."""

    run: RunDir
    directory: str
    plan: Mapping[str, Any] = field(default_factory=dict)
    script: str = ""
    batch: str = ""
    parts: Sequence[Mapping[str, str]] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    stays: bool = False  # its directory there is not cleared away at the end
    shares: bool = False  # with rows that may be yet to come; whoever began them clears that away
    step: str = SENDING
    never: tuple[str, str] | None = None  # status and reason of a run that has no end of its own here
    remark: str = ""  # what a person should know although the run has its end
    mirror: Mirror | None = None
    held: Held | None = None
    key: int = 0
    end_wanted: str = ""  # CANCEL or KILL
    end_asked: str = ""
    tried: bool = False  # the host may have heard of it
    sent_again: bool = False
    fetched_again: bool = False
    detached: bool = False

    @property
    def is_home(self) -> bool:
        """Whether everything that is to come of the run is here."""
        return self.step in (CLEARING, DONE)


def remember(run: RunDir, spec: HostSpec, directory: str, *, adopted: bool = False) -> None:
    """Note in the mirror where the run is, before anything is sent: whoever comes later finds it. An adopted one was
    begun by somebody else, who will want to bring it home as well."""
    os.makedirs(run.path, exist_ok=True)
    where = {"host": spec.name, "kind": spec.kind, "address": spec.address, "workspace": spec.workspace}
    note(run, **where, directory=directory, adopted=adopted, complete=False)
