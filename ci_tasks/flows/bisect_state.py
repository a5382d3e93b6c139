"""What a bisection knows, in a file: HOME/bisections/NAME.json, written whole after every run.

Its name is made of what was asked, so that the same words find it again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ci_tasks.errors import UsageError
from ci_tasks.judge.bisection.evidence import Observation
from ci_tasks.runner.layout import read_json, write_json
from ci_tasks.runs import store

_VERSION = 1


@dataclass(frozen=True)
class Subject:
    """What makes two bisections one: the commits, and what runs on them."""

    repo: str
    good: str
    bad: str
    label: str
    row: str
    signature: str = ""
    image: str = ""
    first_parent: bool = False

    @property
    def name(self) -> str:
        slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{self.label}-{self.row}")[:60].strip("-.")
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:10]
        return f"{slug}-{digest}"


@dataclass
class State:
    """`observations` are in the order in which they were made, `marks` what each said at that time."""

    path: Path
    subject: Subject
    order: Sequence[str]  # the commits by position
    observations: list[Observation] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)

    def add(self, seen: Observation, mark: str) -> None:
        """Remember a run, in the file too."""
        self.observations.append(seen)
        self.marks.append(mark)
        self._save()

    def _save(self) -> None:
        runs = [
            {"commit": self.order[seen.position], **_without_position(seen), "mark": mark}
            for seen, mark in zip(self.observations, self.marks, strict=True)
        ]
        write_json(str(self.path), {"version": _VERSION, **asdict(self.subject), "observations": runs})


@contextmanager
def opened(subject: Subject, order: Sequence[str], *, fresh: bool = False) -> Iterator[State]:
    """The state of `subject` as it was left, or a `fresh` one, for this command alone. Raises UsageError where another
    command has it."""
    directory = store.home() / "bisections"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{subject.name}.json"
    with open(path.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError("another command is at this very bisection", hint="its log goes on there") from None
        yield State(path, subject, order) if fresh else _read(path, subject, order)


def _read(path: Path, subject: Subject, order: Sequence[str]) -> State:
    place = {sha: position for position, sha in enumerate(order)}
    state = State(path, subject, order)
    try:
        for entry in read_json(str(path)).get("observations", []):
            mark = str(entry.pop("mark"))
            state.observations.append(Observation(place[entry.pop("commit")], **entry))
            state.marks.append(mark)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not what a bisection left there: {error!r}", hint="--fresh begins anew, without it"
        ) from None
    return state


def _without_position(seen: Observation) -> dict[str, Any]:
    fields = asdict(seen)
    del fields["position"]
    return fields
