"""Reads what the processes of a job wrote into `evidence/`, and puts it together into evidence.jsonl.

A job can write there whatever it likes: no link is followed, what is read is limited, and only typed values pass.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from typing import Any, Dict, List, Optional, Sequence

from .. import codec
from ..exit_gate import masked_record
from ..files import content_of, replace_file
from ..run_directory import RunDir
from .payload.evidence_file import COUNT, MAX_BYTES, MAX_FILES, MAX_HOOKS
from .records import EvidenceLine, EvidenceSummary, InstalledPackages, ProcessEvidence, RunEvidence, in_order

MAX_STACKS = 1 << 19  # bytes of the stacks of one process
MAX_TOTAL = 1 << 25  # bytes that are read
MAX_WRITTEN = 1 << 24  # bytes of evidence.jsonl
_MAX_PACKAGES = 50  # different sets of installed packages
_PROCESS = re.compile(r"\d{1,10}-\d{1,20}-[0-9a-f]{8}\.jsonl")
_PACKAGES = re.compile(r"packages-[0-9a-f]{16}")
_NAMES = {field.name for field in fields(ProcessEvidence)}


def parse_process(text: str, file: str = "") -> Optional[ProcessEvidence]:
    """The content of a process's file; None where it does not say which process it is. Each line has some fields: of a
    list the further items, of others the value since then."""
    values: Dict[str, Any] = {"file": file}
    stacks: List[str] = []
    for line in text.split("\n"):
        if not line.startswith('{"event": '):
            stacks.append(line)
            continue
        try:
            data = codec.parse(line, where="evidence")
            given = codec.decode(ProcessEvidence, data, where="evidence")
        except codec.RecordError:  # half written, or not by us
            continue
        for name in _NAMES & set(data):
            value = getattr(given, name)
            values[name] = values.get(name, ()) + value if isinstance(value, tuple) else value
    values["stacks"] = "\n".join(stacks).strip("\n")[-MAX_STACKS:]
    return ProcessEvidence(**values) if "pid" in values else None


def read_evidence(directory: str) -> Optional[RunEvidence]:
    """What the processes have written so far; None where there is no such directory."""
    if os.path.islink(directory) or not os.path.isdir(directory):
        return None
    names = sorted(os.listdir(directory))
    files = [name for name in names if _PROCESS.fullmatch(name)][: 2 * MAX_FILES]
    processes: List[ProcessEvidence] = []
    left = MAX_TOTAL
    for name in files:
        content = _content(directory, name, min(left, MAX_BYTES + MAX_HOOKS + MAX_STACKS))
        left -= len(content)
        process = parse_process(content.decode("utf-8", "replace"), name)
        processes += [process] if process is not None else []
    used = {process.packages for process in processes if _PACKAGES.fullmatch(process.packages)}
    packages: Dict[str, InstalledPackages] = {}
    for name in sorted(used)[:_MAX_PACKAGES]:
        try:
            data = codec.parse(_content(directory, name, 1 << 20), where=name)
            packages[name] = codec.decode(InstalledPackages, dict(data, key=name), where=name)
        except (codec.RecordError, TypeError, ValueError):
            continue
    counted = len(_content(directory, COUNT, 1 << 24))
    return RunEvidence(EvidenceSummary(counted, len(files), len(files) - len(processes)), packages, in_order(processes))


def _content(directory: str, name: str, most: int) -> bytes:
    return content_of(os.path.join(directory, name), most, follow_link=False)


def collect_evidence(run: RunDir, secrets: Sequence[str]) -> bool:
    """Write evidence.jsonl. Returns whether there was evidence. Raises OSError."""
    evidence = read_evidence(run.evidence)
    if evidence is None:
        return False
    written = b""
    entries = [EvidenceLine(summary=evidence.summary)]
    entries += [EvidenceLine(packages=packages) for packages in evidence.packages.values()]
    entries += [EvidenceLine(process=process) for process in evidence.processes]
    for entry in entries:
        text = codec.to_json(masked_record(entry, secrets), versioned=False, compact=True)
        line = (text + "\n").encode("utf-8", "backslashreplace")
        written += line if len(written) + len(line) <= MAX_WRITTEN else b""
    replace_file(run.evidence_file, written)
    return True


def collect_left_evidence(run: RunDir, secrets: Sequence[str]) -> None:
    """Of a run that is over, what its agent could not collect. A directory that cannot be read is not seen."""
    if not os.path.lexists(run.evidence_file):
        try:
            collect_evidence(run, secrets)
        except (OSError, ValueError):
            pass
