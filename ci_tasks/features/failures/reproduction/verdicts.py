"""CI's failure and ours: the same, of the same kind, another, none, or nobody could tell. How two failures are compared
is in `comparison`.

here                                              word               exit code
the same evidence, in one repetition              reproduced         0
alike, but not shown to be the same               same kind          4
every repetition passed                           passed here        1
another failure, or nothing ran                   different failure  3
nothing but blocked, lost, cancelled              blocked            125
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import truncated
from ci_tasks.features.failures.comparison.result import ComparisonResult
from ci_tasks.records import BLOCKED as STATUS_BLOCKED
from ci_tasks.records import CANCELLED, LOST, PASSED, RunRecord, Triage
from ci_tasks.trials.same_failure import ALIKE, SAME, Comparison, Difference, compare

REPRODUCED, SAME_KIND, DIFFERENT = "reproduced", "same kind", "different failure"
PASSED_HERE, BLOCKED = "passed here", "blocked"
EXIT_CODES = {REPRODUCED: 0, PASSED_HERE: 1, DIFFERENT: 3, SAME_KIND: 4, BLOCKED: 125}
_UNSURE = 0.5  # a triage's confidence below which two equal failures say little
_LONGEST = 200


@dataclass(frozen=True)
class Reproduction:
    """The word, and why; `record` is the run that shows it, `same` the equal evidence, `differs` the other."""

    verdict: str
    why: str
    record: RunRecord
    same: tuple[str, ...] = ()
    differs: tuple[Difference, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


@dataclass(frozen=True)
class ReproductionResult:
    """As `reproduce --json` prints it. `verdict` is that of the comparison, or `cancelled` or `vacuous` where no run
    came to an end; `ci` is what CI's log says, `run` the run that shows the verdict. `same` is the
    equal evidence, `differs` the other, as each side has it. `comparison` is that of --base."""

    verdict: str
    why: str
    exit_code: int
    ci: Triage
    run: RunRecord | None = None
    same: tuple[str, ...] = ()
    differs: tuple[Difference, ...] = ()
    comparison: ComparisonResult | None = None


def compare_failures(ci: Triage, records: Sequence[RunRecord]) -> Reproduction:
    """What the runs of one row, at least one, say of the failure in CI."""
    compared = [(record, compare(ci, record.triage)) for record in records if record.triage is not None]
    same = [(record, found) for record, found in compared if found.outcome == SAME]
    if same:
        record, found = same[0]
        return Reproduction(REPRODUCED, _same(ci, found, len(same), len(records)), record, found.same)
    conclusive = [record for record in records if record.status not in (STATUS_BLOCKED, LOST, CANCELLED)]
    failed = [record for record in conclusive if record.status != PASSED]
    for record, found in compared:
        if found.outcome == ALIKE and record in failed:
            return Reproduction(SAME_KIND, _alike(ci, record, found), record, found.same, found.differs)
    if failed:
        differs = next((found.differs for record, found in compared if record is failed[0]), ())
        return Reproduction(DIFFERENT, _different(ci, failed[0]), failed[0], (), differs)
    if conclusive:
        return Reproduction(PASSED_HERE, _passed(ci, len(conclusive)), conclusive[0])
    return Reproduction(BLOCKED, records[0].reason or records[0].status, records[0])


def _same(ci: Triage, found: Comparison, same: int, runs: int) -> str:
    often = f" in {same} of {runs} runs" if runs > 1 else ""
    unsure = "; the log says little of why, so this is a weak sign" if ci.confidence < _UNSURE else ""
    failure = truncated(ci.text or ci.line, _LONGEST)
    return f"the same failure{often}: {failure}; equal on both sides: {_listed(found.same)}{unsure}"


def _alike(ci: Triage, record: RunRecord, found: Comparison) -> str:
    if found.differs:
        return f"alike, but not the same: {_listed(map(str, found.differs))}"
    quoted = f"CI: {truncated(ci.text or ci.line, _LONGEST)}; here: {truncated(_reason(record), _LONGEST)}"
    return f"alike, and nothing beyond that is on both sides that shows it to be the same. {quoted}"


def _different(ci: Triage, record: RunRecord) -> str:
    here = record.triage
    if here and here.text and here.text == ci.text:
        places = "; and ".join(_place(triage) for triage in (ci, here))
        return f"the same message from another place: {places}"
    there = truncated(ci.text or ci.line or "no reason in its log", _LONGEST)
    return f"CI: {there}; here: {truncated(_reason(record), _LONGEST)}"


def _reason(record: RunRecord) -> str:
    return (record.triage and record.triage.text) or record.reason or record.status


def _place(triage: Triage) -> str:
    seen = triage.evidence
    return ", in ".join(part for part in (seen.file, seen.function) if part) if seen else "none is named"


def _listed(items: Iterable[str]) -> str:
    return "; ".join(truncated(item, _LONGEST) for item in items)


def _passed(ci: Triage, runs: int) -> str:
    often = f"in all {runs} runs" if runs > 1 else "once"
    if ci.verdict == BLOCKED:
        return f"it passed here {often}; CI's failure was its environment's ({ci.cause})"
    return f"it passed here {often}; `--repeat 20` tells whether it is flaky"
