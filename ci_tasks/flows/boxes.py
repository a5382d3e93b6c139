"""Boxes as flows speak of them: connecting to one, the code that goes there, and how a run there stands.

This module is loaded before all else of a command: see ci_tasks.flows.there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.flows.site import Look
from ci_tasks.hosts import box, memory
from ci_tasks.hosts.ask import Asker, LocalAsker
from ci_tasks.hosts.box import Box, Errand
from ci_tasks.hosts.line import Line
from ci_tasks.hosts.ssh import connect
from ci_tasks.model import Checkout, HostSpec
from ci_tasks.runs import store

if TYPE_CHECKING:
    from ci_tasks.sync.snapshot import Snapshot


@dataclass(frozen=True)
class SentCode:
    """A snapshot that goes to the host as a pack."""

    checkout: Checkout
    snapshot: Snapshot

    def read(self, path: str) -> str | None:
        found = self.snapshot.read(path)
        return None if found is None else found.decode(errors="replace")

    def texts(self, directory: str, suffix: str) -> Iterator[str]:
        for name in self.snapshot.names(directory, suffix):
            yield self.read(name) or ""


def open_box(spec: HostSpec) -> Box:
    """The host, being connected to in the background."""
    # Not in the background as well: two threads that load modules at once only keep each other from it.
    import fabric  # type: ignore[import-untyped]  # noqa: F401

    memory_file = store.home() / "hosts" / f"{memory.key(spec)}.json"
    return Box(lambda news, log: Line(spec, partial(connect, spec.address or spec.name), memory_file, news, log))


@contextmanager
def open_asker(spec: HostSpec) -> Iterator[Asker]:
    """The host, to be asked; this machine too."""
    if spec.kind == "local":
        yield LocalAsker()
        return
    asked = open_box(spec)
    try:
        yield asked.line
    finally:
        asked.close()


def recorded(source: Path, rev: str | None, base: str | None) -> Snapshot:
    """The working tree of `source`, or its revision, as objects that can be sent."""
    from ci_tasks.sync.snapshot import take

    name = hashlib.sha256(os.fsencode(source)).hexdigest()[:16]
    return take(source, store.home() / "sync" / name, rev=rev, base=base)


def look(errand: Errand) -> Look:
    """How a run on a host stands, in the words of a site."""
    if errand.never:
        return Look(never=errand.never)
    if errand.is_home:
        return Look(over=True, note=errand.remark)
    return Look(begun=errand.step != box.SENDING, note="" if errand.step == box.WATCHING else errand.step)
