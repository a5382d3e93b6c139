"""What the processes of a run noted, as its record has it: a summary, the interpreter that the test ran in, and which
tree they imported of each overlay: shown, contradicted, or not seen.

It is the job's claim, and what is missing from it was not seen. Pure but for `read_run_evidence`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.docker_argv import DockerArgvError, is_run, parse_run
from ci_tasks.agent.evidence import (
    MAX_WRITTEN,
    ImportedModule,
    NotedException,
    ProcessEvidence,
    RunEvidence,
    parse_lines,
)
from ci_tasks.agent.files import read_file
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Deviation, DockerInvocation, Overlay, ProbeOverlay, RunDescription
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.errors import some, truncated
from ci_tasks.logs.causes import uncaught_exceptions
from ci_tasks.logs.lines import visible
from ci_tasks.records import BLOCKED, FAILED, PASSED, VACUOUS, ProbeSummary, RunEnvironment, RunRecord
from ci_tasks.results.verdict import ended_as

T = TypeVar("T")

PROBE = "probe"  # the deviation's name
_MAX_SHOWN = 20
_MAX_TEXT = 300
_FRAMEWORKS = ("pytest", "unittest")
NOT_SEEN = "not seen: no process with the probe has imported it"
_MAX_OVERLAY_TEXT = 200
_MAX_FILES = 5
_WHY_COMPILED = (
    "the tree does not have them, so --with replaces its Python code alone: who imports them gets the installed ones, "
    "who opens them by their path finds none"
)


def read_run_evidence(run: RunDir) -> RunEvidence | None:
    """The content of evidence.jsonl; None if there is none."""
    try:
        return parse_lines(read_file(run.evidence_file, MAX_WRITTEN).decode("utf-8", "replace"))
    except OSError:
        return None


# -- for the record ----------------------------------------------------------------------------------------------------


def probe_summary(
    evidence: RunEvidence | None, plan: RunDescription, calls: Sequence[DockerInvocation]
) -> ProbeSummary | None:
    """None for a run without the probe."""
    if not any(deviation.what == PROBE for deviation in plan.deviations):
        return None
    found = evidence or RunEvidence()
    return ProbeSummary(
        processes=len(found.processes),
        ended=sum(bool(process.end) for process in found.processes),
        counted=found.counted,
        exceptions=tuple(exception_text(*pair) for pair in uncaught_exceptions(found)[:_MAX_SHOWN]),
        not_seen=tuple(_not_seen(evidence, calls)),
    )


def with_imports(around: RunEnvironment, evidence: RunEvidence | None, test: str | None) -> RunEnvironment:
    """The environment with the packages of the interpreter that the test ran in, and what was imported."""
    if evidence is None or not evidence.processes:
        return around
    around = replace(around, imported=imported_modules(evidence))
    process = test_process(evidence, test) or (_any_of_one_interpreter(evidence) if test is None else None)
    if process is None:
        return around
    around = replace(around, interpreter=process.executable)
    installed = evidence.packages.get(packages_key(process, evidence))
    if not installed:
        return around
    packages = {name.replace("_", "-"): version for name, version in installed.items()}
    return replace(around, python=process.python, packages=packages)


# -- processes ---------------------------------------------------------------------------------------------------------


def test_process(evidence: RunEvidence, test: str | None) -> ProcessEvidence | None:
    """The process that ran the row's test file; if the row names none, the one that imported the most of what is
    watched. None if no process did either."""
    if test is not None:
        runs = [process for process in evidence.processes if _is_path_of(_script(process), test)]
        named = [process for process in evidence.processes if any(_is_path_of(word, test) for word in process.argv)]
        # A script that starts the test names it too.
        candidates = runs or [one for one in named if any(module.name in _FRAMEWORKS for module in one.imports)]
    else:
        candidates = [process for process in evidence.processes if process.imports]
    return max(candidates, key=lambda process: (len(set(process.imports)), process.started_at), default=None)


def _any_of_one_interpreter(evidence: RunEvidence) -> ProcessEvidence | None:
    """The first process, if all had the same packages: then the process that did the work had them too."""
    listed = [process for process in evidence.processes if process.packages]
    interpreters = {(process.executable, process.packages) for process in listed}
    return min(listed, key=lambda process: process.started_at) if len(interpreters) == 1 else None


def _script(process: ProcessEvidence) -> str:
    """The file that the interpreter runs: the first word after its options; empty with `-m` and `-c`."""
    words = iter(process.argv[1:])
    for word in words:
        if word in ("-m", "-c"):
            return ""
        if word in ("-W", "-X"):
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""


def _is_path_of(word: str, test: str) -> bool:
    path = word.partition("::")[0]
    return path.endswith(".py") and (path == test or path.endswith("/" + test) or test.endswith("/" + path))


def packages_key(process: ProcessEvidence, evidence: RunEvidence) -> str:
    """Which packages its interpreter has: its parent's, if it is a fork."""
    by_key = {other.key: other for other in evidence.processes}
    for _ in range(len(by_key)):
        parent = by_key.get(process.parent)
        if process.packages or not process.forked or parent is None:
            break
        process = parent
    return process.packages


# -- packages ----------------------------------------------------------------------------------------------------------


def imported_modules(evidence: RunEvidence) -> tuple[ImportedModule, ...]:
    """Each module and origin once, with the most that any process knows of it."""
    best: dict[tuple[str, str], ImportedModule] = {}
    for module in (module for process in evidence.processes for module in process.imports):
        known = best.get((module.name, module.origin))
        if known is None or (module.package_version and not known.package_version):
            best[module.name, module.origin] = module
    return tuple(sorted(best.values(), key=lambda module: (module.name, module.origin))[:1000])


def imported_elsewhere(
    evidence: RunEvidence, own: Iterable[str], workspace: str, calls: Iterable[DockerInvocation]
) -> Iterator[Deviation]:
    """Packages of the checkout that processes imported from somewhere else, so that other code was tested. A copy that
    was installed from a directory, and not from an index, is one of the checkout."""
    places = tuple(f"{place.rstrip('/')}/" for place in [workspace, *_places_in_containers(workspace, calls)] if place)
    for name in own:
        modules = [module for module in imported_modules(evidence) if module.name == name and module.origin]
        origins = [module.origin for module in modules if not module.local and not module.origin.startswith(places)]
        if origins:
            here = truncated(" and ".join(visible(origin.encode("utf-8", "replace")) for origin in origins), _MAX_TEXT)
            yield Deviation(f"import {name}", "the checkout's", here, "a process imported it there, not from your tree")


def _places_in_containers(workspace: str, calls: Iterable[DockerInvocation]) -> Iterator[str]:
    """Where containers have the workspace, or parts of it."""
    for call in calls:
        try:
            mounts = parse_run(call.here).mounts if is_run(call.here) else []
        except DockerArgvError:
            continue
        for source, place in ((mount.source, mount.destination) for mount in mounts):
            if f"{source}/".startswith(f"{workspace}/"):
                yield place
            elif source.startswith("/") and f"{workspace}/".startswith(source.rstrip("/") + "/"):
                yield place.rstrip("/") + workspace[len(source.rstrip("/")) :]


# -- what a suite's hooks noted ----------------------------------------------------------------------------------------


def hook_records(evidence: RunEvidence, hook: str, kind: str, record: type[T]) -> Iterator[tuple[ProcessEvidence, T]]:
    """The lines of one kind, as the frozen dataclass that the suite gives for it. What is no such record is left out:
    the job can write what it likes."""
    for process in evidence.processes:
        for event in process.hook_events:
            if (event.hook, event.kind) == (hook, kind) and not event.failure:
                try:
                    yield process, event.decode(record)
                except RecordError:
                    continue


def _hook_failures(evidence: RunEvidence) -> list[str]:
    failures = (event for process in evidence.processes for event in process.hook_events if event.failure)
    texts = (f"{event.hook}: {event.failure}".encode("utf-8", "replace") for event in failures)
    return list(dict.fromkeys(truncated(visible(text), _MAX_TEXT) for text in texts))[:_MAX_SHOWN]


# -- failures ----------------------------------------------------------------------------------------------------------


def exception_text(process: ProcessEvidence, failure: NotedException) -> str:
    """`pid 7, rank 3, thread loader: KeyError: 'x' (loader.py:88 in next_batch)`."""
    first = failure.chain[0]
    who = [f"pid {process.pid}"]
    if process.rank is not None:
        who.append(f"rank {process.rank}")
    if failure.where == "thread":
        who.append(f"thread {visible(failure.name.encode('utf-8', 'replace'))}".strip())
    kind = first.type.removeprefix("builtins.")
    lines = [visible(line.encode("utf-8", "replace")).strip() for line in first.message.splitlines() if line.strip()]
    at = -1 if first.type.startswith("ray.") else 0  # Ray puts the worker's whole traceback there
    message = lines[at] if lines else ""
    frame = first.frames[-1] if first.frames else None
    place = f" ({frame.file.rpartition('/')[2]}:{frame.line} in {frame.function})" if frame else ""
    text = f"{', '.join(who)}: {kind}" + (f": {message}" if message else "")
    return truncated(text, _MAX_TEXT - len(place)) + place


def _not_seen(evidence: RunEvidence | None, calls: Iterable[DockerInvocation]) -> Iterator[str]:
    deviations: list[Deviation] = [item for call in calls for item in call.deviations if item.what == PROBE]
    yield from dict.fromkeys(item.here for item in deviations if item.here.startswith("none"))
    if evidence is None:
        yield "no records of processes"
        return
    if not evidence.processes:
        yield "no Python process was seen"
    yield from _hook_failures(evidence)
    if evidence.unread:
        yield f"what {evidence.unread} processes recorded could not be read, or was too much"


# -- overlays: which tree processes imported of each, which compiled parts stayed the installed ones -------------------


@dataclass(frozen=True)
class OverlayUse:
    """What processes show of an overlay: `text` is shown, contradicted or not seen; `problem` names the first that
    had its packages from elsewhere. `compiled` are the modules of the installed packages that they imported since the
    tree lacks them."""

    text: str
    problem: str = ""
    compiled: tuple[str, ...] = ()


def overlay_use(overlay: Overlay, directory: str, evidence: RunEvidence | None) -> OverlayUse:
    """`directory` is where the run had the overlay's packages; not absolute if that is not known."""
    processes = evidence.processes if evidence is not None else ()
    below = tuple(f"{name}." for name in overlay.modules)  # the overlay's packages, and modules in them
    seen = [(each, module) for each in processes for module in each.imports if f"{module.name}.".startswith(below)]
    elsewhere = [(process, module) for process, module in seen if not _is_from(directory, module.origin)]
    compiled = tuple(sorted({_file_of(module) for _, module in elsewhere if _is_compiled(module)}))
    for process, module in elsewhere:
        if not _is_compiled(module):
            command, name, origin = _shown(" ".join(process.argv[:4]), 100), _shown(module.name), _shown(module.origin)
            problem = f"--with {overlay.name}: pid {process.pid} ({command}) imported {name} from {origin}"
            return OverlayUse(f"contradicted: {problem}", problem, compiled)
    count = len({process.key for process, module in seen if module.name in overlay.modules})
    who = "the one process that was" if count == 1 else f"all {count} processes that were"
    return OverlayUse(f"shown: {who} seen to import it loaded it from there" if count else NOT_SEEN, compiled=compiled)


def with_overlay_uses(record: RunRecord, evidence: RunEvidence | None, where: Sequence[ProbeOverlay] = ()) -> RunRecord:
    """The record with them beside each overlay's deviation. A run of other code than was asked for shows nothing of
    that code: it is blocked. `where` are the overlays as the probe has them, none of a run that another client
    planned."""
    overlays = record.checkout.overlays if record.checkout else ()
    if not overlays:
        return record
    uses = {f"overlay {each.name}": overlay_use(each, _directory(each, where), evidence) for each in overlays}
    deviations = [
        replace(item, why=f"{item.why}; {uses[item.what].text}") if item.what in uses else item
        for item in record.deviations
    ]
    for name, use in uses.items():
        if use.compiled:
            here = f"the installed {some([_shown(file) for file in use.compiled], _MAX_FILES)}"
            deviations.append(Deviation(f"{name}: compiled parts", "built with its Python code", here, _WHY_COMPILED))
    record = replace(record, deviations=tuple(deviations))
    problem = next((use.problem for use in uses.values() if use.problem), "")
    if not problem or record.status not in (PASSED, FAILED, VACUOUS):
        return record
    return replace(ended_as(record, BLOCKED, problem), triage=None)


def _directory(overlay: Overlay, places: Sequence[ProbeOverlay]) -> str:
    known = (place.directory for place in places if place.directory.endswith(f"/{overlay.directory}"))
    return next(known, overlay.directory)


def _is_from(directory: str, origin: str) -> bool:
    is_below = origin.startswith(f"{directory}/") if directory.startswith("/") else f"/{directory}/" in origin
    return is_below and "/../" not in origin


def _is_compiled(module: ImportedModule) -> bool:
    return "." in module.name and module.origin.endswith(".so")


def _file_of(module: ImportedModule) -> str:
    """From the directory around the overlay's package."""
    return "/".join([*module.name.split(".")[:-1], module.origin.rpartition("/")[2]])


def _shown(text: str, longest: int = _MAX_OVERLAY_TEXT) -> str:
    return visible(text.encode("utf-8", "replace"), longest)
