"""What a bisection knows, in a file: HOME/bisections/NAME.json, written whole after every run.

Its name is made of what was asked, so that the same words find it again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Any

from ci_tasks.agent.codec import RecordError, encode, from_json
from ci_tasks.agent.files import try_lock
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import write_json
from ci_tasks.errors import UsageError
from ci_tasks.features.failures.bisection.observations import Observation
from ci_tasks.results import store


@dataclass(frozen=True)
class BisectionKey:
    """What makes two bisections one: the ends, and what runs there. `commit` is the one that images are tried with."""

    repo: str
    good: str
    bad: str
    label: str
    row: str
    signature: str = ""
    image: str = ""
    first_parent: bool = False
    commit: str = ""

    @property
    def name(self) -> str:
        slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{self.label}-{self.row}")[:60].strip("-.")
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:10]
        return f"{slug}-{digest}"


@dataclass(frozen=True)
class StoredRun:
    """A run as the file has it: of a commit or an image instead of a position, which another range would change."""

    commit: str
    kind: str
    signature: str
    reason: str
    run: str
    host: str
    seconds: float | None
    mark: str
    failure_kind: str = ""


@dataclass(frozen=True)
class StoredBisection:
    """The content of the file."""

    subject: BisectionKey
    observations: tuple[StoredRun, ...] = ()


@dataclass
class BisectionState:
    """`observations` are in the order in which they were made, `marks` what each said at that time."""

    path: Path
    subject: BisectionKey
    keys: Sequence[str]  # the commits or images by position
    observations: list[Observation] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)

    def add(self, observation: Observation, mark: str) -> None:
        """Remember a run, in the file too."""
        self.observations.append(observation)
        self.marks.append(mark)
        self._save()

    def _save(self) -> None:
        runs = (
            StoredRun(self.keys[observation.position], mark=mark, **_seen(observation))
            for observation, mark in zip(self.observations, self.marks, strict=True)
        )
        write_json(str(self.path), encode(StoredBisection(self.subject, tuple(runs))))


@contextmanager
def open_state(subject: BisectionKey, keys: Sequence[str], *, fresh: bool = False) -> Iterator[BisectionState]:
    """The state of `subject` as it was left, or a `fresh` one, for this command alone. Raises UsageError where another
    command has it."""
    directory = store.home() / "bisections"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{subject.name}.json"
    with open(path.with_suffix(".lock"), "w") as lock:
        if try_lock(lock.fileno()) is False:
            raise UsageError("another command is at this very bisection", hint="its log goes on there")
        yield BisectionState(path, subject, keys) if fresh else _read(path, subject, keys)


def _read(path: Path, subject: BisectionKey, keys: Sequence[str]) -> BisectionState:
    place = {sha: position for position, sha in enumerate(keys)}
    state = BisectionState(path, subject, keys)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return state
    try:
        for stored in from_json(StoredBisection, text, where=path.name).observations:
            state.observations.append(Observation(place[stored.commit], **_seen(stored)))
            state.marks.append(stored.mark)
    except (RecordError, KeyError) as error:
        raise UsageError(
            f"{path} is not what a bisection left there: {error!r}", hint="--fresh begins anew, without it"
        ) from None
    return state


def _seen(run: Observation | StoredRun) -> dict[str, Any]:
    """What both have of a run."""
    names = {each.name for each in fields(Observation)} & {each.name for each in fields(StoredRun)}
    return {name: getattr(run, name) for name in names}
