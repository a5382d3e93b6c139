"""What run.sh asks for around install steps: a venv over the environment that earlier runs have stored for them, and to
store what they have installed."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Optional

from .. import run_directory
from ..file_lock import LockTimeout
from ..setup_manifest import ENVIRONMENT
from .key import environment_key
from .layer import create_venv
from .promote import NotShareable, VenvIncomplete, promote
from .store import EnvironmentStore, StoredEnvironment

PACKAGES = "packages"  # beside the log: which packages are used again
_KEY = os.path.join("tmp", "environment-key")


def make_venv(run_dir: str, directory: str) -> int:
    """Make the venv of the run's install steps, over the packages that they have installed before."""
    install = run_directory.read_plan(run_directory.RunDir(run_dir)).install
    store = EnvironmentStore(install.store)
    key = environment_key(install, os.environ.get("GITHUB_WORKSPACE", ""), os.environ)
    environment = None if install.fresh else _usable(store, key, directory)
    try:
        if environment is None:
            create_venv(directory, None)
            with open(os.path.join(run_dir, _KEY), "w", encoding="ascii") as out:
                out.write(key)
        else:
            create_venv(directory, environment.prefix, environment.record.scripts_of)
            _note_use(run_dir, environment)
            with open(os.path.join(run_dir, PACKAGES), "w", encoding="ascii") as out:
                out.write(environment.record.description)
            _print("uses what earlier runs of these steps installed: %s" % environment.record.description)
    except (OSError, subprocess.CalledProcessError) as error:
        _print(str(error))
        return 1
    return 0


def store_packages(run_dir: str, directory: str) -> int:
    """Store what the steps have installed, if that is not where it comes from. No run fails because of it, unless its
    venv is no longer whole."""
    install = run_directory.read_plan(run_directory.RunDir(run_dir)).install
    store = EnvironmentStore(install.store)
    try:
        with open(os.path.join(run_dir, _KEY), encoding="ascii") as source:
            key, began = source.read(), os.fstat(source.fileno()).st_mtime
        os.unlink(source.name)
        now = time.time()
        environment = promote(directory, store, key, now, max(0.0, round(now - began, 1)))
        if environment is not None:
            _note_use(run_dir, environment)
            _print("stored for other runs of these steps: %s" % environment.record.description)
            for sentence, _ in store.evict():
                _print(sentence)
    except FileNotFoundError:
        pass  # nothing new
    except (OSError, LockTimeout, NotShareable) as error:
        _print("packages are not shared with other runs: %s" % error)
    except VenvIncomplete as error:
        _print("the venv has lost what was stored of it: %s" % error)
        return 1
    return 0


def make_row_venv(directory: str, below: str) -> int:
    """Make a row's own venv over that of the install steps."""
    try:
        create_venv(directory, below)
    except (OSError, subprocess.CalledProcessError) as error:
        _print(str(error))
        return 1
    return 0


def _usable(store: EnvironmentStore, key: str, directory: str) -> Optional[StoredEnvironment]:
    try:
        environment = store.take(key, directory)
        damage = environment.damage() if environment is not None else ""
    except (OSError, LockTimeout) as error:
        _print("no packages of earlier runs: %s" % error)
        return None
    if environment is not None and damage:
        environment.give_up()
        _print(
            "packages of earlier runs are installed again (%s), since they are not as they were stored: %s"
            % (environment.record.expected, damage)
        )
        return None
    return environment


def _note_use(run_dir: str, environment: StoredEnvironment) -> None:
    link = os.path.join(run_dir, ENVIRONMENT)
    if os.path.lexists(link):
        os.unlink(link)
    os.symlink(environment.path, link)


def _print(text: str) -> None:
    print("ci-tasks: " + text, flush=True)
