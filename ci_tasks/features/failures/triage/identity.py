"""A failure's two signatures and its evidence, from the candidate that triage chose, or from how the job ended."""

from __future__ import annotations

from collections.abc import Iterable

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.failures.triage.candidate_reader import LAST, PLAIN, Candidate
from ci_tasks.features.failures.triage.evidence import FailureLines, evidence_of
from ci_tasks.features.failures.triage.log_prefixes import read
from ci_tasks.features.failures.triage.signature import kind_of, signature_of
from ci_tasks.records import FailureEvidence


@dataclass(frozen=True)
class FailureIdentity:
    """The fields of these names in a Triage."""

    signature: str
    kind: str
    evidence: FailureEvidence


def identify(chosen: Candidate, candidates: Iterable[Candidate], exit_code: int | None = None) -> FailureIdentity:
    """The identity of the failure whose line is `chosen`. `candidates` are all of the log: pytest's summary is among
    them. `exit_code` is the job's."""
    name = chosen.type or (chosen.rule.name if chosen.rule else "error")
    message = chosen.text[len(chosen.type) :].lstrip(": ") if chosen.type else chosen.text
    above = [read(0, raw).text for raw in chosen.above.split(b"\n")[1:] if raw]
    lines = FailureLines(
        name,
        message,
        chosen.frames,
        chosen.calls,
        above or chosen.before,
        [read(0, shown.encode("utf-8", "replace")).text for shown in chosen.after],
        [other.text for other in candidates if other.text.startswith(("FAILED ", "ERROR "))],
        raised=bool(chosen.type) or chosen.kind not in (PLAIN, LAST),
        exit_code=exit_code,
    )
    return of_evidence(evidence_of(lines))


def of_ending(name: str, exit_code: int | None = None) -> FailureIdentity:
    """The identity of a failure of which only the job's end is known."""
    return of_evidence(evidence_of(FailureLines(name, "", raised=False, exit_code=exit_code)))


def of_evidence(evidence: FailureEvidence) -> FailureIdentity:
    return FailureIdentity(signature_of(evidence), kind_of(evidence), evidence)
