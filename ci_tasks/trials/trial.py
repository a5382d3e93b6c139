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

from ci_tasks import known_secrets
from ci_tasks.agent.codec import RecordError, encode, from_json, masked_record
from ci_tasks.agent.files import try_lock
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError, counted
from ci_tasks.resources import make_home
from ci_tasks.run.interrupts import noticed
from ci_tasks.trials import report
from ci_tasks.trials.rules import Outcome, TrialRule, TrialVerdict
from ci_tasks.trials.words import CANCELLED


@dataclass(frozen=True)
class TrialRun:
    """Rows to run in a setting; no rows are those that the label has. `number` is one more than the runs of the setting
    that counted."""

    setting: str
    rows: tuple[str, ...]
    number: int = 1


Perform = Callable[[TrialRun], Iterable[Outcome]]
"""Runs the rows, and gives each outcome as it comes. A host that cannot be reached blocks a run.
KeyboardInterrupt ends the trial after the outcomes that were given."""
RuleOfRow = Callable[[str], TrialRule]


class Trial:
    """`settings` are what is compared or searched, by key, each with what it is pinned to; `more` is what else makes
    two trials one. Without `rows` they are those that the first run has. `name` is how a line calls a setting.
    `resume`: go on with the journal, else begin again."""

    def __init__(
        self,
        question: str,
        settings: Mapping[str, str],
        rows: Sequence[str],
        perform: Perform,
        *,
        more: Mapping[str, str] | None = None,
        resume: bool = True,
        name: Callable[[str], str] = str,
    ) -> None:
        asked = {"question": question, "settings": settings, "rows": rows, "more": more or {}}
        self._asked = known_secrets.masked(json.dumps(asked, sort_keys=True)).encode()
        self.question, self.settings, self._asked_rows = question, settings, rows
        self.perform, self.resume, self.name = perform, resume, name
        self.outcomes: list[Outcome] = []
        self.verdicts: dict[str, TrialVerdict] = {}
        self.is_interrupted = False

    def __enter__(self) -> Trial:
        """Read the journal. Raises UsageError if another command has it, or if it cannot be read."""
        directory = make_home() / "trials"
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{self._name()}.jsonl"
        self._file = open(self.path, "a+b")
        try:
            if try_lock(self._file.fileno()) is False:
                raise UsageError(f"another command is at this very {self.question}", hint="its log goes on there")
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def run(self, rule: RuleOfRow, until: Callable[[], bool] = lambda: False) -> None:
        """Run until each row has its verdict, or `until` ends it. ^C ends it with what there is."""
        for number, outcome in enumerate(self.outcomes, 1):
            self._say(number, outcome)
        if self.outcomes:
            print(f"going on after {counted(len(self.outcomes), 'run')} of before ({self.path})", flush=True)
        with noticed() as interrupted:
            try:
                while not until() and (runs := self._wanted(rule)):
                    before = len(self.outcomes)
                    for run in runs:
                        for outcome in self.perform(run):
                            self._add(outcome)
                        if interrupted():
                            raise KeyboardInterrupt
                    if len(self.outcomes) == before:
                        break
            except KeyboardInterrupt:
                self.is_interrupted = True

    def of_row(self, row: str) -> list[Outcome]:
        """What is known of a row, oldest first."""
        return [one for one in self.outcomes if one.row == row]

    @property
    def rows(self) -> list[str]:
        return list(self._asked_rows) or list(dict.fromkeys(one.row for one in self.outcomes))

    def verdict(self, row: str) -> TrialVerdict:
        """The row's verdict; that it was interrupted, if it has none."""
        return self.verdicts.get(row) or TrialVerdict(CANCELLED, "interrupted; the same command goes on from here")

    def _wanted(self, rule: RuleOfRow) -> list[TrialRun]:
        """The runs that come next, those of one setting together: its tree is sent once for all rows."""
        rows_of: dict[str, list[str]] = {}
        numbers: dict[str, int] = {}
        for row in self.rows or [""]:
            if row in self.verdicts:
                continue
            known = self.of_row(row)
            what = rule(row).next(known)
            if isinstance(what, TrialVerdict):
                self.verdicts[row] = what
                continue
            for setting in what:
                rows_of.setdefault(setting, []).append(row)
                numbers.setdefault(setting, 1 + sum(one.setting == setting and one.counts for one in known))
        return [TrialRun(setting, tuple(filter(None, rows)), numbers[setting]) for setting, rows in rows_of.items()]

    # -- the journal

    def _name(self) -> str:
        words = "-".join([self.question, *self._asked_rows[:1]])
        slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", words)[:60].strip("-.")
        return f"{slug}-{hashlib.sha256(self._asked).hexdigest()[:12]}"

    def _read(self) -> None:
        self._file.seek(0)
        text = self._file.read() if self.resume else b""
        whole, newline, torn = text.rpartition(b"\n")
        try:
            head, *entries = whole.split(b"\n") if newline else [b""]
            if head not in (b"", self._asked):
                raise RecordError(self.path.name, "", "it is of another trial")
            self.outcomes = [from_json(Outcome, entry, where=self.path.name) for entry in entries]
        except RecordError as error:
            hint = "--fresh begins again, without it"
            raise UsageError(f"{self.path} is not what a trial left there: {error}", hint=hint) from None
        self._file.truncate(len(text) - len(torn))  # a line that was being written when its program was killed
        if not head:
            self._write(self._asked)

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if outcome.status != CANCELLED:  # it is made again
            masked = masked_record(outcome, known_secrets.values())
            self._write(json.dumps(encode(masked, versioned=False)).encode())
        self._say(len(self.outcomes), outcome)

    def _say(self, number: int, one: Outcome) -> None:
        setting = f"{self.name(one.setting)}  " if len(self.settings) > 1 else ""
        print(report.line(number, one, f"{setting}{one.row}"), flush=True)

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
