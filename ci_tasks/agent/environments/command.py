"""What run.sh asks for around install steps: a venv over the environment that earlier runs have stored for them, and to
store what they have installed."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from typing import Optional

from .. import run_directory
from ..file_lock import LockTimeout
from .key import environment_key, steps_key
from .store import Environment, EnvironmentRecord, EnvironmentStore
from .venvs import NotShareable, create_venv, move, put_over, shareable

PACKAGES = "packages"  # beside the log: which packages are used again
_KEY = os.path.join("tmp", "environment-key")


def make_venv(run_dir: str, directory: str) -> int:
    """Make the venv of the run's install steps, over the packages that they have installed before."""
    install = run_directory.read_plan(run_directory.RunDir(run_dir)).install
    store = EnvironmentStore(install.store)
    key = environment_key(install, os.environ.get("GITHUB_WORKSPACE", ""), os.environ)
    try:
        environment = None if install.fresh else _usable(store, key, directory)
        create_venv(directory, environment.prefix if environment else None)
        if environment is None:
            for before in store.all(steps_key(install))[:1]:
                _print("these steps installed %s the last time" % before.record.expected)
            with open(os.path.join(run_dir, _KEY), "w", encoding="ascii") as out:
                out.write(key)
        else:
            with open(os.path.join(run_dir, PACKAGES), "w", encoding="ascii") as out:
                out.write(environment.record.description)
            _print("uses what earlier runs of these steps installed: %s" % environment.record.description)
    except (OSError, LockTimeout, subprocess.CalledProcessError) as error:
        _print(str(error))
        return 1
    return 0


def store_packages(run_dir: str, directory: str) -> int:
    """Store what the steps have installed, if that is not where it comes from. Fails if the venv is no longer whole."""
    store = EnvironmentStore(run_directory.read_plan(run_directory.RunDir(run_dir)).install.store)
    note = os.path.join(run_dir, _KEY)
    try:
        with open(note, encoding="ascii") as source:
            key, seconds = source.read(), round(time.time() - os.fstat(source.fileno()).st_mtime, 1)
        os.unlink(note)
        packages = shareable(directory)
        environment = store.new(key) if packages else None
    except FileNotFoundError:
        return 0  # nothing new
    except (OSError, NotShareable) as error:
        _print("packages are not shared with other runs: %s" % error)
        return 0
    try:
        if environment is not None:
            size = move(list(itertools.chain(*packages.values())), directory, environment.prefix)
            environment.add_user(directory)
            environment.seal(EnvironmentRecord(tuple(sorted(packages)), time.time(), size, seconds))
            put_over(directory, environment.prefix)
            _print("stored for other runs of these steps: %s" % environment.record.description)
            for sentence, _ in store.clean():
                _print(sentence)
    except (OSError, LockTimeout) as error:
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


def _usable(store: EnvironmentStore, key: str, directory: str) -> Optional[Environment]:
    environment = store.take(key, directory)
    damage = environment.damage() if environment is not None else ""
    if environment is not None and damage:
        environment.give_up()
        expected = environment.record.expected
        _print("packages of earlier runs are installed again (%s): %s since they were stored" % (expected, damage))
        return None
    return environment


def _print(text: str) -> None:
    print("ci-tasks: " + text, flush=True)
