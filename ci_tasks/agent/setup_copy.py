"""A copy of what install steps made, taken before any row used it. A repetition of the rows begins with it, at the same
paths, so it reads nothing that the repetition before has written."""

from __future__ import annotations

import os
import shutil
from typing import Iterator

from .cleanup.remove_tree import remove_tree
from .environments.store import StoredEnvironment
from .setup_manifest import (
    COPY,
    ENVIRONMENT,
    READY,
    VENV,
    WORKSPACE,
    SetupChanged,
    changed_files,
    check_setup,
    differing,
    forget,
)

_PARTS = (VENV, WORKSPACE, READY)


def make_copy(directory: str) -> None:
    """Copy what the install steps in `directory` have just made. Raises SetupChanged, OSError."""
    check_setup(directory)  # the first check records what is there
    copy = os.path.join(directory, COPY)
    _remove(copy)
    forget(directory, COPY)
    os.mkdir(copy)
    for name in _existing(directory):
        _copy(os.path.join(directory, name), os.path.join(copy, name))
    changed_files(directory, (COPY,))
    below = os.path.join(directory, ENVIRONMENT)
    if os.path.islink(below):  # it stays while the copy does: the venv is gone for a moment when it is restored
        StoredEnvironment(os.path.realpath(below)).add_user(os.path.join(copy, VENV))


def restore_copy(directory: str) -> None:
    """Put the copy in the place of what rows have used. Raises SetupChanged, OSError."""
    copy = os.path.join(directory, COPY)
    if not os.path.isdir(copy) or not os.path.exists(copy + ".manifest"):
        raise SetupChanged("there is no copy of what the install steps made")
    changed = changed_files(directory, (COPY,))
    if changed:
        raise SetupChanged("the copy of what the install steps made is not as it was: %s" % differing(changed))
    for name in _PARTS:
        _remove(os.path.join(directory, name))
        forget(directory, name)
    for name in _existing(copy):
        _copy(os.path.join(copy, name), os.path.join(directory, name))
    check_setup(directory)


def _existing(directory: str) -> Iterator[str]:
    return (name for name in _PARTS if os.path.lexists(os.path.join(directory, name)))


def _copy(source: str, target: str) -> None:
    """Never by links: what is written to one would be written to the other."""
    if os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def _remove(path: str) -> None:
    left = remove_tree(path, None, "none", {})
    if left:
        raise OSError("cannot remove %s" % left[0])
