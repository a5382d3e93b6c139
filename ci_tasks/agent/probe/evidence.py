"""Reads what the processes of a job wrote into `evidence/`, and puts it together into evidence.jsonl.

A job can write there whatever it likes: no link is followed, what is read is limited, and only typed values pass.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, replace
from itertools import islice
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .. import codec
from ..exit_gate import masked_record
from ..files import replace_file
from ..run_directory import RunDir
from .payload import COUNT, MAX_BYTES, MAX_FILES, PACKAGES
from .records import (
    EvidenceLine,
    EvidenceSummary,
    ImportedModule,
    InstalledPackages,
    LinkedException,
    PeakMemory,
    ProcessEvidence,
    RunEvidence,
    UncaughtException,
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


# -- lines of a process's file -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Start:
    t: float
    pid: int
    start: int
    ppid: int
    parent_start: int
    namespace: str
    argv: Tuple[str, ...]
    directory: str
    executable: str
    prefix: str
    python: str
    env: Mapping[str, str]
    forked: bool
    signal: int
    descriptor: int


@dataclass(frozen=True)
class _Environ:
    env: Mapping[str, str]


@dataclass(frozen=True)
class _PackagesFile:
    file: str


@dataclass(frozen=True)
class _Import:
    module: ImportedModule


@dataclass(frozen=True)
class _ExceptionLine:
    t: float
    where: str
    thread: str
    chain: Tuple[LinkedException, ...]


@dataclass(frozen=True)
class _End:
    t: float
    how: str
    memory: Tuple[PeakMemory, ...]
    modules: Tuple[ImportedModule, ...]


_Line = Union[_Start, _Environ, _PackagesFile, _Import, _ExceptionLine, _End]
_KINDS = {
    "start": _Start,
    "environ": _Environ,
    "packages": _PackagesFile,
    "import": _Import,
    "exception": _ExceptionLine,
    "end": _End,
}


def parse_process(text: str, file: str = "") -> Optional[ProcessEvidence]:
    """The content of a process's file; None where it does not say which process it is."""
    process: Optional[ProcessEvidence] = None
    stacks: List[str] = []
    for line in text.split("\n"):
        if not line.startswith(_EVENT):
            stacks.append(line)
            continue
        entry = _parse_line(line)
        if isinstance(entry, _Start) and process is None:
            values = {name: value for name, value in vars(entry).items() if name != "t"}
            process = ProcessEvidence(file=file, started_at=entry.t, **values)
        elif entry is not None and process is not None:
            process = _with_line(process, entry)
    dumped = "\n".join(stacks).strip("\n")
    return replace(process, stacks=dumped[-MAX_STACKS:]) if process is not None else None


def _parse_line(line: str) -> Optional[_Line]:
    try:
        data = codec.parse(line, where="evidence")
        kind = _KINDS.get(str(data["event"])) if isinstance(data, dict) else None
        return codec.decode(kind, data, where="evidence") if kind is not None else None
    except codec.RecordError:  # half written, or not by us
        return None


def _with_line(process: ProcessEvidence, line: _Line) -> ProcessEvidence:
    if isinstance(line, _Environ):
        return replace(process, env=line.env)
    if isinstance(line, _PackagesFile):
        return replace(process, packages=line.file)
    if isinstance(line, _Import):
        return replace(process, imports=(*process.imports, line.module))
    if isinstance(line, _ExceptionLine):
        return replace(process, exceptions=(*process.exceptions, UncaughtException(**vars(line))))
    if isinstance(line, _End):
        return replace(process, ended_at=line.t, end=line.how, memory=line.memory, modules=line.modules)
    return process


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
        content = _read(os.path.join(directory, name), min(left, MAX_BYTES + MAX_STACKS))
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
