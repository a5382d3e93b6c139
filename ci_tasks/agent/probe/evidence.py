"""Reads what the processes of a job wrote into `evidence/`, and puts it together into evidence.jsonl.

A job can write there whatever it likes: no link is followed, what is read is limited, and only typed values pass.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from itertools import islice
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .. import codec
from ..exit_gate import masked_record
from ..files import replace_file
from ..run_directory import RunDir
from .payload.limits import COUNT, MAX_BYTES, MAX_FILES, MAX_HOOKS, PACKAGES
from .records import (
    EvidenceLine,
    EvidenceSummary,
    HookEvent,
    ImportedModule,
    InstalledPackages,
    NotedException,
    OverlaidPackage,
    ProcessEvidence,
    RunEvidence,
    in_order,
    lines_of,
)

MAX_ENTRIES = 4 * MAX_FILES  # of the directory that are looked at
MAX_PACKAGES = 50  # different sets of installed packages
MAX_STACKS = 1 << 19  # bytes of the stacks of one process
MAX_TOTAL = 1 << 25  # bytes that are read
MAX_WRITTEN = 1 << 24  # bytes of evidence.jsonl
_PROCESS = re.compile(r"\d{1,10}-\d{1,20}-[0-9a-f]{8}\.jsonl")
_PACKAGES = re.compile(PACKAGES + r"[0-9a-f]{32}")
_EVENT = '{"event": '


# What each event says, by the fields of `ProcessEvidence` that it sets.
_FIELDS = {
    "start": (
        *("started_at", "pid", "start", "ppid", "parent_start", "namespace", "argv", "directory", "executable"),
        *("prefix", "python", "env", "forked", "signal", "descriptor"),
    ),
    "environ": ("env",),
    "packages": ("packages",),
    "end": ("ended_at", "end", "memory", "modules"),
}


# -- lines of a process's file -----------------------------------------------------------------------------------------


def parse_process(text: str, file: str = "") -> Optional[ProcessEvidence]:
    """The content of a process's file; None where it does not say which process it is."""
    process: Optional[ProcessEvidence] = None
    stacks: List[str] = []
    for line in text.split("\n"):
        if not line.startswith(_EVENT):
            stacks.append(line)
            continue
        try:
            data = codec.parse(line, where="evidence")
            event = str(data["event"])
            if process is not None and event != "start":
                process = _with_event(process, event, data)
            elif process is None and event == "start":
                process = _with_event(ProcessEvidence(file=file), event, data)
        except (codec.RecordError, KeyError):  # half written, or not by us
            continue
    dumped = "\n".join(stacks).strip("\n")
    return replace(process, stacks=dumped[-MAX_STACKS:]) if process is not None else None


def _with_event(process: ProcessEvidence, event: str, data: Mapping[str, Any]) -> ProcessEvidence:
    """Raises RecordError, and KeyError for what is missing."""
    if event == "import":
        return replace(process, imports=(*process.imports, codec.decode(ImportedModule, data, where=event)))
    if event == "overlaid":
        return replace(process, overlaid=(*process.overlaid, codec.decode(OverlaidPackage, data, where=event)))
    if event == "exception":
        return replace(process, exceptions=(*process.exceptions, codec.decode(NotedException, data, where=event)))
    if event == "hook":
        return replace(process, hook_events=(*process.hook_events, codec.decode(HookEvent, data, where=event)))
    names = _FIELDS.get(event, ())
    values = codec.decode(ProcessEvidence, {name: data[name] for name in names}, where=event)
    return replace(process, **{name: getattr(values, name) for name in names})


# -- the directory -----------------------------------------------------------------------------------------------------


def read_evidence(directory: str) -> Optional[RunEvidence]:
    """What the processes have written so far; None where there is no such directory."""
    try:
        if os.path.islink(directory):
            return None
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in islice(entries, MAX_ENTRIES))
    except OSError:
        return None
    processes: List[ProcessEvidence] = []
    left, unread = MAX_TOTAL, 0
    files = [name for name in names if _PROCESS.fullmatch(name)]
    for name in files:
        content = _read(os.path.join(directory, name), min(left, MAX_BYTES + MAX_HOOKS + MAX_STACKS))
        left -= len(content or b"")
        process = parse_process(content.decode("utf-8", "replace"), name) if content else None
        if process is None:
            unread += 1
        else:
            processes.append(process)
    summary = EvidenceSummary(_count(os.path.join(directory, COUNT)), len(files), unread)
    ordered = in_order(processes)
    return RunEvidence(summary, _read_packages(directory, names, ordered), ordered)


def _read_packages(
    directory: str, names: Sequence[str], processes: Sequence[ProcessEvidence]
) -> Dict[str, InstalledPackages]:
    used = {process.packages for process in processes}
    found: Dict[str, InstalledPackages] = {}
    for name in [name for name in names if name in used and _PACKAGES.fullmatch(name)][:MAX_PACKAGES]:
        try:
            packages = codec.from_json(InstalledPackages, _read(os.path.join(directory, name), 1 << 20), where=name)
        except codec.RecordError:
            continue
        found[name] = replace(packages, key=name)
    return found


def _read(path: str, most: int) -> bytes:
    """The first `most` bytes; nothing where it is no plain file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return b""
        with os.fdopen(file, "rb", closefd=False) as source:
            return source.read(most)
    except OSError:
        return b""
    finally:
        os.close(file)


def _count(path: str) -> int:
    try:
        info = os.lstat(path)
    except OSError:
        return 0
    return info.st_size if stat.S_ISREG(info.st_mode) else 0


# -- the end of a run --------------------------------------------------------------------------------------------------


def collect_evidence(run: RunDir, secrets: Sequence[str]) -> bool:
    """Write evidence.jsonl. Returns whether there was evidence. Raises OSError."""
    evidence = read_evidence(run.evidence)
    if evidence is None:
        return False
    written: List[bytes] = []
    left = MAX_WRITTEN
    for entry in lines_of(evidence):
        line = _encoded(masked_record(entry, secrets))
        if len(line) <= left:
            left -= len(line)
            written.append(line)
    replace_file(run.evidence_file, b"".join(written))
    return True


def collect_left_evidence(run: RunDir, secrets: Sequence[str]) -> None:
    """Of a run that is over, what its agent could not collect. A directory that cannot be read is not seen."""
    if os.path.isdir(run.evidence) and not os.path.lexists(run.evidence_file):
        try:
            collect_evidence(run, secrets)
        except (OSError, ValueError):
            pass


def _encoded(entry: EvidenceLine) -> bytes:
    text = codec.to_json(entry, versioned=False, compact=True)
    return (text + "\n").encode("utf-8", "backslashreplace")
