"""Which tree processes imported of each overlay, by what the probe noted: shown, contradicted, or not seen. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ci_tasks.agent.probe.records import ProcessEvidence, RunEvidence
from ci_tasks.agent.records import Overlay
from ci_tasks.records import BLOCKED, FAILED, PASSED, VACUOUS, RunRecord

NOT_SEEN = "not seen: no process that the probe reached has imported it"


@dataclass(frozen=True)
class OverlayUse:
    """How many processes imported the overlay's packages; `problem` names the first that had them from elsewhere."""

    overlay: Overlay
    processes: int = 0
    problem: str = ""

    @property
    def text(self) -> str:
        if self.problem:
            return f"contradicted: {self.problem}"
        if not self.processes:
            return NOT_SEEN
        many = "the one process" if self.processes == 1 else f"all {self.processes} processes"
        return f"shown: {many} that imported it had it from there"


def overlay_use(overlay: Overlay, evidence: RunEvidence | None) -> OverlayUse:
    processes = evidence.processes if evidence is not None else ()
    origins = [(process, *pair) for process in processes for pair in _origins(process) if pair[0] in overlay.modules]
    problem = ""
    for process, name, origin in origins:
        if f"/{overlay.directory}/" not in origin:
            command = " ".join(process.argv[:4])[:100]
            problem = f"--with {overlay.name}: pid {process.pid} ({command}) imported {name} from {origin}"
            break
    return OverlayUse(overlay, len({process.key for process, _, _ in origins}), problem)


def with_overlay_uses(record: RunRecord, evidence: RunEvidence | None) -> RunRecord:
    """The record with them beside each overlay's deviation. A run of other code than was asked for shows nothing of
    that code: it is blocked."""
    uses = [overlay_use(overlay, evidence) for overlay in (record.checkout.overlays if record.checkout else ())]
    if not uses:
        return record
    texts = {f"overlay {use.overlay.name}": use.text for use in uses}
    deviations = (
        replace(item, why=f"{item.why}; {texts[item.what]}") if item.what in texts else item
        for item in record.deviations
    )
    record = replace(record, deviations=tuple(deviations))
    problem = next((use.problem for use in uses if use.problem), "")
    if not problem or record.status not in (PASSED, FAILED, VACUOUS):
        return record
    *earlier, last = record.attempts
    attempts = (*earlier, replace(last, status=BLOCKED, reason=problem))
    return replace(record, status=BLOCKED, reason=problem, attempts=attempts)


def _origins(process: ProcessEvidence) -> Iterator[tuple[str, str]]:
    for module in (*process.imports, *process.modules):
        yield module.name, module.origin
