"""The loop of every trial: ask the rule, run, write the journal, go on until each row has its verdict.

    with Trial("compare", {"base": tree, "yours": tree}, rows, perform) as trial:
        trial.run(lambda row, known: AB("base", "yours"))
    trial.verdicts, trial.outcomes

The journal is a file of JSON lines: what was asked, then each outcome. The outcomes alone decide what comes next, so
the same trial goes on by reading them. Its name is made of what was asked, trees and images included: the same words
find it again, and another tree begins another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from io import BytesIO
from types import TracebackType
from typing import IO, Any

from ci_tasks import known_secrets
from ci_tasks.agent.codec import RecordError, encode, from_json, masked_record
from ci_tasks.agent.files import try_lock
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError, counted, printable
from ci_tasks.report.table import duration
from ci_tasks.results import store
from ci_tasks.run.interrupts import noticed
from ci_tasks.trials.rules import Outcome, Rule, TrialVerdict
from ci_tasks.trials.words import CANCELLED


@dataclass(frozen=True)
class TrialRun:
    """Rows to run in a setting; no rows are those that the label has. `number` is one more than the runs of the setting
    that counted."""

    setting: str
    rows: tuple[str, ...]
    number: int = 1


Perform = Callable[[Sequence[TrialRun]], Iterable[Outcome]]
"""Runs them, at once if it can, and gives each outcome as it comes. A host that cannot be reached blocks a run.
KeyboardInterrupt ends the trial after the outcomes that were given."""


@dataclass(frozen=True)
class JournalHead:
    """The first line of a journal: what was asked. `settings` has by key what each was pinned to."""

    question: str
    settings: Mapping[str, str]
    rows: tuple[str, ...]
    more: Mapping[str, str] = field(default_factory=dict)


class Trial:
    """`settings` are what is compared or searched, by key, each with what it is pinned to; `more` is what else makes
    two trials one. Without `rows` they are those that the first run has. `earlier` are runs of the history that count.
    `at_once`: all runs that the rule wants are given to `perform` together, and not one after another. `show` gives the
    line of an outcome, with its number. `resume`: go on with the journal, else begin again."""

    def __init__(
        self,
        question: str,
        settings: Mapping[str, str],
        rows: Sequence[str],
        perform: Perform,
        *,
        more: Mapping[str, str] | None = None,
        at_once: bool = False,
        resume: bool = True,
        has_journal: bool = True,
        say: Callable[[str], None] = lambda line: print(line, flush=True),
        show: Callable[[int, Outcome], str] | None = None,
    ) -> None:
        head = JournalHead(question, dict(settings), tuple(rows), more or {})
        self.head = masked_record(head, known_secrets.values())
        self.perform, self.resume, self.say, self.show = perform, resume, say, show or _line
        self._file: IO[bytes] = BytesIO()
        self._has_journal, self.at_once = has_journal, at_once
        self.earlier: list[Outcome] = []
        self.outcomes: list[Outcome] = []
        self.verdicts: dict[str, TrialVerdict] = {}
        self.is_interrupted = False
        self.resumed = 0
        self._rules: dict[str, Rule] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Trial:
        """Read the journal. Raises UsageError if another command has it, or if it cannot be read."""
        if not self._has_journal:
            return self
        directory = store.home() / "trials"
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{self._name()}.jsonl"
        self._file = self._stack.enter_context(open(self.path, "a+b"))
        if try_lock(self._file.fileno()) is False:
            self._stack.close()
            raise UsageError(f"another command is at this very {self.head.question}", hint="its log goes on there")
        try:
            self._read(self._file)
        except BaseException:
            self._stack.close()
            raise
        self.resumed = len(self.outcomes)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def run(self, rule: Callable[[str, Sequence[Outcome]], Rule], until: Callable[[], bool] = lambda: False) -> None:
        """Run until each row has its verdict, or `until` ends it. `rule` has the rule of a row, with what is known of
        it now. ^C ends it with what there is."""
        for number, outcome in enumerate(self.outcomes, 1):
            self.say(self.show(number, outcome))
        if self.outcomes:
            self.say(f"going on after {counted(len(self.outcomes), 'run')} of before ({self.path})")
        with noticed() as interrupted:
            try:
                while not until() and (runs := self._wanted(rule)):
                    before = len(self.outcomes)
                    for together in [runs] if self.at_once else [[run] for run in runs]:
                        for outcome in self.perform(together):
                            self._add(outcome)
                        if interrupted():
                            raise KeyboardInterrupt
                    if len(self.outcomes) == before:
                        break
            except KeyboardInterrupt:
                self.is_interrupted = True

    def of_row(self, row: str) -> list[Outcome]:
        """What is known of a row, oldest first. A run of the history in another image than those here is left out."""
        own = [one for one in self.outcomes if one.row == row]
        images = {(one.setting, one.image) for one in own if one.counts}
        moved = {setting for setting, _ in images}
        earlier = [one for one in self.earlier if one.row == row]
        return [one for one in earlier if one.setting not in moved or (one.setting, one.image) in images] + own

    @property
    def rows(self) -> list[str]:
        return list(self.head.rows) or list(dict.fromkeys(one.row for one in self.outcomes))

    def verdict(self, row: str) -> TrialVerdict:
        """The row's verdict; that it was interrupted, if it has none."""
        return self.verdicts.get(row) or TrialVerdict(CANCELLED, "interrupted; the same command goes on from here")

    def _wanted(self, rule: Callable[[str, Sequence[Outcome]], Rule]) -> list[TrialRun]:
        """The runs that come next, those of one setting together: its tree is sent once for all rows."""
        numbers: dict[tuple[str, int], int] = {}
        groups: dict[tuple[str, int], list[str]] = {}  # setting, and how many runs of it are before this one → rows
        for row in self.rows or [""]:
            if row in self.verdicts:
                continue
            known = self.of_row(row)
            if row not in self._rules:
                self._rules[row] = rule(row, known)
            what = self._rules[row].next(known)
            if isinstance(what, TrialVerdict):
                self.verdicts[row] = what
                continue
            for at, setting in enumerate(what):
                done = sum(one.setting == setting and one.counts for one in known) + what[:at].count(setting)
                groups.setdefault((setting, what[:at].count(setting)), []).append(row)
                numbers.setdefault((setting, what[:at].count(setting)), 1 + done)
        return [TrialRun(key[0], tuple(filter(None, rows)), numbers[key]) for key, rows in groups.items()]

    # -- the journal

    def _name(self) -> str:
        words = "-".join([self.head.question, *self.head.rows[:1]])
        slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", words)[:60].strip("-.")
        asked = json.dumps(encode(self.head, versioned=False), sort_keys=True)
        return f"{slug}-{hashlib.sha256(asked.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"

    def _read(self, file: IO[bytes]) -> None:
        file.seek(0)
        text = file.read() if self.resume else b""
        whole, newline, torn = text.rpartition(b"\n")
        try:
            head, *entries = whole.split(b"\n") if newline else [b""]
            if head and from_json(JournalHead, head, where=self.path.name) != self.head:
                raise RecordError(self.path.name, "", "it is of another trial")
            self.outcomes = [from_json(Outcome, entry, where=self.path.name) for entry in entries]
        except RecordError as error:
            hint = "--fresh begins again, without it"
            raise UsageError(f"{self.path} is not what a trial left there: {error}", hint=hint) from None
        file.truncate(len(text) - len(torn))  # a line that was being written when its program was killed
        if not head:
            self._write(self.head)

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if outcome.status != CANCELLED:  # it is made again
            self._write(masked_record(outcome, known_secrets.values()))
        self.say(self.show(len(self.outcomes), outcome))

    def _write(self, entry: Any) -> None:
        self._file.write(json.dumps(encode(entry, versioned=False)).encode() + b"\n")
        self._file.flush()
        if self._has_journal:
            os.fsync(self._file.fileno())


def _line(number: int, one: Outcome) -> str:
    took = f", {duration(one.seconds)}" if one.seconds is not None else ""
    why = f": {one.reason}" if one.reason and one.status != "passed" else ""
    return printable(f"{number:>3}  {one.setting}  {one.row}: {one.status}{why} [{one.run}{took}]")
