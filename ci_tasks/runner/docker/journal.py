"""docker.json and events: what a script asked of docker, what became of it, and what differs. Secrets are masked."""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Dict

from ..layout import RunDir, write_json
from ..words import Deviation, masked

Entry = Dict[str, Any]


class Blocked(Exception):
    """The run cannot be done here; the message says why and what to do about it."""


@contextlib.contextmanager
def journal(run_dir: RunDir) -> Iterator[list[Entry]]:
    """docker.json's entries, held by us alone; what was appended is written when the block ends well.

    A container that is not on record would be left behind, so without a record there is none.
    """
    try:
        with open(run_dir.docker + ".lock", "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = _read_entries(run_dir.docker)
            yield entries
            write_json(run_dir.docker, entries)
    except OSError as error:
        raise Blocked(f"{run_dir.docker} cannot be written: {error.strerror}") from None


def event(run_dir: RunDir, what: str, **more: str | None) -> None:
    """One line beside the runner's own. It is for people who watch; a full disk is no reason to stop here."""
    shown = {key: value and _showable([value])[0] for key, value in more.items()}
    line = json.dumps({"t": round(time.time(), 3), "event": what, **shown}) + "\n"
    try:
        with open(run_dir.events, "a", encoding="utf-8") as out:
            out.write(line)
    except OSError:
        pass


def _read_entries(path: str) -> list[Entry]:
    try:
        with open(path, encoding="utf-8") as source:
            entries = json.load(source)
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise Blocked(f"{path} is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise Blocked(f"{path} is not a list of docker calls")
    return entries


def entry(
    ci: Sequence[str], here: Sequence[str], deviations: Sequence[Deviation], runtime: str, name: str | None
) -> Entry:
    return {
        "ci": _showable(ci),
        "here": _showable(here),
        "deviations": [{key: _showable([text])[0] for key, text in one.items()} for one in deviations],
        "name": name,
        "runtime": runtime,
    }


def _showable(words: Sequence[str]) -> list[str]:
    """Secrets masked, and bytes that are no UTF-8 as `\\xNN`, since JSON cannot hold them."""
    return [word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for word in masked(words)]
