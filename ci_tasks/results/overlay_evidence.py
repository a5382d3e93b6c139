"""Which tree processes imported of each overlay, by what the probe noted: shown, contradicted, or not seen; which
compiled parts stayed the installed ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ci_tasks.agent.probe.evidence import ImportedModule, ProcessEvidence, RunEvidence
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Deviation, Overlay, ProbeOverlay
from ci_tasks.errors import some
from ci_tasks.logs.lines import visible
from ci_tasks.records import BLOCKED, FAILED, PASSED, VACUOUS, RunRecord

NOT_SEEN = "not seen: no process that the probe reached has imported it"
_MAX_TEXT = 200
_MAX_FILES = 5
_WHY_COMPILED = (
    "the tree does not have them, so --with replaces its Python code alone: who imports them gets the installed ones, "
    "who opens them by their path finds none"
)


@dataclass(frozen=True)
class OverlayUse:
    """What processes show of an overlay: `text` is shown, contradicted or not seen; `problem` names the first that
    had its packages from elsewhere. `compiled` are the modules of the installed packages that they imported since the
    tree lacks them."""

    text: str
    problem: str = ""
    compiled: tuple[str, ...] = ()


def overlay_use(overlay: Overlay, directory: str, evidence: RunEvidence | None) -> OverlayUse:
    """`directory` is where the run had the overlay's packages; not absolute where that is not known."""
    processes = evidence.processes if evidence is not None else ()
    seen = [(process, module) for process in processes for module in _modules(process, overlay)]
    elsewhere = [(process, module) for process, module in seen if not _is_from(directory, module.origin)]
    compiled = tuple(sorted({_file_of(module) for _, module in elsewhere if _is_compiled(module)}))
    for process, module in elsewhere:
        if not _is_compiled(module):
            command, name, origin = _text(" ".join(process.argv[:4]), 100), _text(module.name), _text(module.origin)
            problem = f"--with {overlay.name}: pid {process.pid} ({command}) imported {name} from {origin}"
            return OverlayUse(f"contradicted: {problem}", problem, compiled)
    count = len({process.key for process, module in seen if module.name in overlay.modules})
    who = "the one process that was" if count == 1 else f"all {count} processes that were"
    return OverlayUse(f"shown: {who} seen to import it had it from there" if count else NOT_SEEN, compiled=compiled)


def with_overlay_uses(
    record: RunRecord, evidence: RunEvidence | None, places: Sequence[ProbeOverlay] = ()
) -> RunRecord:
    """The record with them beside each overlay's deviation. A run of other code than was asked for shows nothing of
    that code: it is blocked. `places` are the overlays as the probe has them, none of a run that another client
    planned."""
    overlays = record.checkout.overlays if record.checkout else ()
    if not overlays:
        return record
    uses = {f"overlay {each.name}": overlay_use(each, _directory(each, places), evidence) for each in overlays}
    deviations = [
        replace(item, why=f"{item.why}; {uses[item.what].text}") if item.what in uses else item
        for item in record.deviations
    ]
    for name, use in uses.items():
        if use.compiled:
            here = f"the installed {some([_text(file) for file in use.compiled], _MAX_FILES)}"
            deviations.append(Deviation(f"{name}: compiled parts", "built with its Python code", here, _WHY_COMPILED))
    record = replace(record, deviations=tuple(deviations))
    problem = next((use.problem for use in uses.values() if use.problem), "")
    if not problem or record.status not in (PASSED, FAILED, VACUOUS):
        return record
    *earlier, last = record.attempts
    attempts = (*earlier, replace(last, status=BLOCKED, reason=problem))
    return replace(record, status=BLOCKED, reason=problem, attempts=attempts, triage=None)


def _directory(overlay: Overlay, places: Sequence[ProbeOverlay]) -> str:
    known = (place.directory for place in places if place.directory.endswith(f"/{overlay.directory}"))
    return next(known, overlay.directory)


def _modules(process: ProcessEvidence, overlay: Overlay) -> Iterator[ImportedModule]:
    """The overlay's packages, and modules in them."""
    below = tuple(f"{name}." for name in overlay.modules)
    for module in process.imports:
        if f"{module.name}.".startswith(below):
            yield module


def _is_from(directory: str, origin: str) -> bool:
    if "/../" in origin:
        return False
    return origin.startswith(f"{directory}/") if directory.startswith("/") else f"/{directory}/" in origin


def _is_compiled(module: ImportedModule) -> bool:
    return "." in module.name and module.origin.endswith(".so")


def _file_of(module: ImportedModule) -> str:
    """From the directory around the overlay's package."""
    return "/".join([*module.name.split(".")[:-1], module.origin.rpartition("/")[2]])


def _text(text: str, longest: int = _MAX_TEXT) -> str:
    return visible(text.encode("utf-8", "replace"), longest)
