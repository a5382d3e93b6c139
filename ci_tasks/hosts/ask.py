"""The one primitive that facts need of a host: put questions to its programs, all at once, and get their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ci_tasks.runner.link import ask as runner_ask


@dataclass(frozen=True)
class Answer:
    """What a program said. `code` is None where it is not there or did not answer in time; `err` says which."""

    code: int | None
    out: str = ""
    err: str = ""

    @property
    def timed_out(self) -> bool:
        return self.code is None and self.err.startswith("no answer")

    @property
    def absent(self) -> bool:
        """The program is not there; 127 is how `env` says so."""
        return self.code == 127 or (self.code is None and not self.timed_out)

    @property
    def said(self) -> str:
        """The last line of its complaint, or of its output where it did not complain."""
        spoken = [line.strip() for text in (self.out, self.err) for line in text.splitlines() if line.strip()]
        return spoken[-1] if spoken else "it said nothing"


class Asker(Protocol):
    """A host that can be asked. The questions run at the same time, so that a program that hangs delays no other."""

    def ask(self, questions: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, Answer]:
        """The answer to each argv, by the question's name."""
        ...


class LocalAsker:
    """This machine."""

    def ask(self, questions: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, Answer]:
        return {name: Answer(**given) for name, given in runner_ask.ask(questions, timeout).items()}
