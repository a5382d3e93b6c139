"""Workspaces that no run uses, for the next runs of their checkout: there only files that differ are written.

The workspace HOME/runs/…/workspace of a run has a slot in HOME/workspaces, which no job is given: its name is made of
the checkout and of the workspace's path, and in it is the index of what was checked out. After the run the workspace
itself is there. A run takes it by one rename, so no two have the same one. Whatever a job, or another process of the
account, makes of it decides only how much is written: what cannot be made the tree is replaced by a new one.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from functools import partial
from typing import Callable, List, Sequence

from ..records import CheckoutPart
from .git import DiskFull, Git, MissingBase, StoreError, form_of, make_repository
from .workspace import Lend, flat_tree, make_plain, remove, write_workspace

_MAX_IDLE = 2  # of a checkout
_IN_USE_S = 86400.0  # a slot may be without a workspace for so long before it is pruned
_LENGTH = 16  # characters of each half of its name


def check_out(store: str, parts: Sequence[CheckoutPart], workspace: str, lend: Lend, checkout: str = "") -> None:
    """Replace `workspace` by the parts: of an idle one of `checkout`, the path where they come from, or a new one.
    Leaves nothing if it raises: MissingBase for whatever may help, DiskFull, StoreError, OSError."""
    flat_tree(parts)
    remove(workspace)
    os.makedirs(os.path.dirname(workspace), exist_ok=True)
    slot = slot_of(workspace, checkout) if checkout else ""
    own = slot or tempfile.mkdtemp(prefix="ci-tasks-")
    write = partial(write_workspace, store, parts, workspace, os.path.join(own, "index"), lend)
    try:
        if not (slot and _reuse(slot, workspace, write)):
            os.mkdir(workspace)
            make_repository(own, form_of(parts[0].tree))
            write()
    except BaseException as error:
        remove(workspace)
        remove(own)
        if isinstance(error, DiskFull) and slot and prune(os.path.dirname(slot), time.time()):
            check_out(store, parts, workspace, lend, checkout)
        elif isinstance(error, StoreError) and not isinstance(error, DiskFull):
            raise MissingBase(str(error)) from None
        else:
            raise
    if not slot:
        remove(own)


def slot_of(workspace: str, checkout: str = "") -> str:
    """The slot of a run's workspace; "" for one that is not below a directory `runs`."""
    path = os.path.join(os.path.realpath(os.path.dirname(workspace)), os.path.basename(workspace))
    key, name = (hashlib.sha256(os.fsencode(text)).hexdigest()[:_LENGTH] for text in (checkout, path))
    home, runs, _ = path.rpartition("/runs/")
    return os.path.join(home, "workspaces", "%s-%s" % (key, name)) if runs else ""


def _reuse(slot: str, workspace: str, write: Callable[[], None]) -> bool:
    """Make the newest idle one of the checkout `workspace`, its slot `slot`, and `write` into it."""
    remove(slot)
    for other in reversed(_idle(slot)):
        with suppress(OSError, StoreError):
            os.rename(other, slot)  # fails if another run has taken it
            os.rename(os.path.join(slot, "workspace"), workspace)
            write()
            return True
        if os.path.lexists(workspace):  # there may be what cannot be removed
            os.rename(workspace, os.path.join(slot, "workspace"))
        _discard(slot)
    return False


def release(workspace: str, checkout: str) -> None:
    """Let another run have the workspace of an ended one, without what its job has made there. Raises StoreError,
    OSError; the workspace is where it was then."""
    slot = slot_of(workspace, checkout)
    make_plain(workspace, set(Git(slot).split("ls-files", "-z")), os.path.join(slot, "index"))
    os.utime(slot)
    os.rename(workspace, os.path.join(slot, "workspace"))
    for old in _idle(slot)[:-_MAX_IDLE]:
        _discard(old)


def forget(workspace: str) -> None:
    """Remove the slot of a workspace that is gone."""
    own = slot_of(workspace)
    for slot in _slots(os.path.dirname(own)):
        if slot[-_LENGTH:] == own[-_LENGTH:] and not _is_idle(slot):
            _discard(slot)


def prune(directory: str, unused_since: float) -> bool:
    """Remove those in HOME/workspaces that were unused since then, of any checkout. Returns whether there were any."""
    removed = False
    for slot in _slots(directory):
        is_idle = _is_idle(slot)
        if _mtime(slot) < (unused_since if is_idle else min(unused_since, time.time() - _IN_USE_S)):
            removed |= _discard(slot) and is_idle
    return removed


def _discard(slot: str) -> bool:
    """Remove it, or at least give it a name that no run takes. Returns whether it is gone."""
    away = os.path.join(os.path.dirname(slot), "removed-" + os.urandom(8).hex())
    with suppress(OSError, StoreError):
        os.rename(slot, away)
        remove(away)
        return True
    return False


def _idle(slot: str) -> List[str]:
    """The slots of the same checkout whose workspace no run has, the newest last."""
    return [found for found in _slots(os.path.dirname(slot)) if found[:-_LENGTH] == slot[:-_LENGTH] and _is_idle(found)]


def _is_idle(slot: str) -> bool:
    return os.path.lexists(os.path.join(slot, "workspace"))


def _slots(directory: str) -> List[str]:
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return sorted((os.path.join(directory, name) for name in names), key=_mtime)


def _mtime(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0
