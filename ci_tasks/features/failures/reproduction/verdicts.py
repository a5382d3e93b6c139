"""CI's failure and ours: the same, another, none, or nobody could tell.

here                                         word               exit code
the same signature, in one repetition        reproduced         0
every repetition passed                      passed here        1
another failure, or nothing ran              different failure  3
nothing but blocked, lost, cancelled         blocked            125
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ci_tasks.records import BLOCKED as STATUS_BLOCKED
from ci_tasks.records import CANCELLED, LOST, PASSED, RunRecord, Triage

REPRODUCED, PASSED_HERE, DIFFERENT, BLOCKED = "reproduced", "passed here", "different failure", "blocked"
EXIT_CODES = {REPRODUCED: 0, PASSED_HERE: 1, DIFFERENT: 3, BLOCKED: 125}
_UNSURE = 0.5  # a triage's confidence below which two equal signatures say little


@dataclass(frozen=True)
class Reproduction:
    """The word, and why; `record` is the run that shows it."""

    verdict: str
    why: str
    record: RunRecord

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


@dataclass(frozen=True)
class ReproductionResult:
    """As `reproduce --json` prints it. `verdict` is that of the comparison, or `cancelled` or `vacuous` where no run
    came to an end; `ci` is what CI's log says, `run` the run that shows the verdict."""

    verdict: str
    why: str
    exit_code: int
    ci: Triage
    run: RunRecord | None = None


def compare_failures(ci: Triage, records: Sequence[RunRecord]) -> Reproduction:
    """What the runs of one row, at least one, say of the failure in CI."""
    same = [record for record in records if ci.signature and record.signature == ci.signature]
    if same:
        return Reproduction(REPRODUCED, _same(ci, len(same), len(records)), same[0])
    conclusive = [record for record in records if record.status not in (STATUS_BLOCKED, LOST, CANCELLED)]
    failed = [record for record in conclusive if record.status != PASSED]
    if failed:
        return Reproduction(DIFFERENT, _different(ci, failed[0]), failed[0])
    if conclusive:
        return Reproduction(PASSED_HERE, _passed(ci, len(conclusive)), conclusive[0])
    return Reproduction(BLOCKED, records[0].reason or records[0].status, records[0])


def _same(ci: Triage, same: int, runs: int) -> str:
    often = f" in {same} of {runs} runs" if runs > 1 else ""
    unsure = "; the log says little of why, so this is a weak sign" if ci.confidence < _UNSURE else ""
    return f"the same failure{often}: {ci.signature}{unsure}"


def _different(ci: Triage, record: RunRecord) -> str:
    here = record.triage
    reason = (here and here.text) or record.reason or record.status
    if here and here.text and here.text == ci.text:
        return f"the same message from another place: {' < '.join(reversed(here.frames)) or 'none is named'}"
    return f"CI: {ci.text or ci.line or 'no reason in its log'}; here: {reason}"


def _passed(ci: Triage, runs: int) -> str:
    often = f"in all {runs} runs" if runs > 1 else "once"
    if ci.verdict == BLOCKED:
        return f"it passed here {often}; CI's failure was its environment's ({ci.cause})"
    return f"it passed here {often}; `--repeat 20` tells whether it is flaky"
