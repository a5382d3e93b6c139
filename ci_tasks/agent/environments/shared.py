"""What the rows of a command share: the venv and the checkout of their install steps. A row that changes them changes
what the next rows test, so each row is told what is no longer as the first one found it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Dict, List

from .. import run_directory
from ..files import replace_file
from ..records import Event
from ..trees.git import Git, StoreError
from .store import EnvironmentStore, changed_files, listing_bytes, locked, read_listing, state_of, states

_MOST_NAMED = 3


def note_changes(run_dir: str, setup: str, workspace: str) -> None:
    """Put into the row's events what changed of the venv and the checkout of the install steps in `setup`; the first
    row lists what there is. Raises OSError, StoreError."""
    notes = os.path.join(setup, "tmp")  # it goes with the venv
    os.makedirs(notes, exist_ok=True)
    venv, tracked = os.path.join(setup, "venv"), os.path.join(notes, "tracked")
    listing = os.path.join(notes, "venv")  # written last
    if not os.path.exists(listing):
        with locked(os.path.join(notes, "lock")):
            if not os.path.exists(listing):
                replace_file(tracked, listing_bytes(_tracked(workspace)))
                replace_file(listing, listing_bytes(states(venv)))
                return
    packages = changed_files(read_listing(listing), venv)
    store = run_directory.read_plan(run_directory.RunDir(setup)).install.store
    environment = EnvironmentStore(store).below(venv) if store else None
    packages += environment.changed() if environment is not None else []
    before = read_listing(tracked)
    checkout = [file for file, state in sorted(before.items()) if state_of(os.path.join(workspace, file)) != state]
    with open(run_directory.RunDir(run_dir).events, "a", encoding="ascii") as events:
        for what, files in (("packages", packages), ("checkout", checkout)):
            if files:
                more = ["%d more" % (len(files) - _MOST_NAMED)] if len(files) > _MOST_NAMED else []
                text = "changed since the install steps: " + ", ".join([*files[:_MOST_NAMED], *more])
                events.write(Event(time.time(), "changed " + what, name=text).line())


def _tracked(workspace: str) -> Dict[str, bytes]:
    """The files of the checkout, of its submodules and of overlays, without what the steps made beside them."""
    found: Dict[str, bytes] = {}
    for directory, names, _ in os.walk(workspace):
        if ".git" in names:
            names.remove(".git")
            listed: List[bytes] = []
            with suppress(StoreError):  # a .git that leads nowhere tracks nothing
                listed = Git(os.path.join(directory, ".git"), directory).split("ls-files", "-z")
            for path in (os.path.join(directory, os.fsdecode(name)) for name in listed):
                found[os.path.relpath(path, workspace)] = state_of(path)
    return found
