"""A checkout as objects that a host is sent.

This module is loaded before all else of a command: see ci_tasks.hosts.executor.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.background import Background
from ci_tasks.results import store

if TYPE_CHECKING:
    from ci_tasks.checkout.snapshot import Snapshot
    from ci_tasks.given_values import OverlaySource


def start_host_snapshot(
    source: Path, rev: str | None, base: str | None, overlays: Sequence[OverlaySource] = ()
) -> Background[Snapshot] | None:
    """Take it in the background: git is busy with it while the rest of a command is loaded. None where our files lie in
    the checkout: nothing may be written there before `prepare` has found that git ignores them."""
    if store.home().is_relative_to(source):
        return None
    return Background(take_host_snapshot, source, rev, base, overlays)


def take_host_snapshot(
    source: Path, rev: str | None, base: str | None, overlays: Sequence[OverlaySource] = ()
) -> Snapshot:
    """The working tree of `source`, or its revision, with the overlays, as objects that can be sent."""
    from ci_tasks.checkout.snapshot import take_snapshot

    name = hashlib.sha256(os.fsencode(source)).hexdigest()[:16]
    return take_snapshot(source, store.home() / "sync" / name, rev=rev, base=base, overlays=overlays)
