"""Reads what the processes of a job wrote into `evidence/`, and puts it together into evidence.jsonl.

A job can write there whatever it likes: no link is followed, what is read is limited, and only typed values pass.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .. import codec
from ..exit_gate import masked_record
from ..files import content_of, replace_file
from ..run_directory import RunDir
from .payload.evidence_file import MAX_BYTES
from .records import ProcessEvidence, RunEvidence, in_order

MAX_PROCESSES = 2000  # that are read; the others are only counted
MAX_TOTAL = 1 << 25  # bytes that are read
MAX_WRITTEN = 1 << 24  # bytes of evidence.jsonl
_PROCESS = re.compile(r"\d{1,10}-\d{1,20}-[0-9a-f]{8}\.jsonl")
_PACKAGES = re.compile(r"packages-[0-9a-f]{16}")


def parse_process(text: str) -> Optional[ProcessEvidence]:
    """The content of a process's file; None where it does not say which process it is, or is not by us. Each line has
    some fields: of a list the further items, of others the value since then."""
    values: Dict[str, Any] = {}
    for line in text.split("\n"):
        with suppress(codec.RecordError, AttributeError):  # half written, or a stack
            for name, value in codec.parse(line, where="evidence").items():
                before = values.get(name)
                values[name] = before + value if isinstance(value, list) and isinstance(before, list) else value
    try:
        process = codec.decode(ProcessEvidence, values, where="evidence")
    except codec.RecordError:
        return None
    return process if process.pid else None


def read_evidence(directory: str) -> Optional[RunEvidence]:
    """What the processes have written so far; None where there is no such directory."""
    if os.path.islink(directory) or not os.path.isdir(directory):
        return None
    names = sorted(filter(_PROCESS.fullmatch, os.listdir(directory)))
    processes: List[ProcessEvidence] = []
    left = MAX_TOTAL
    for name in names[:MAX_PROCESSES]:
        content = _content(directory, name, min(left, 2 * MAX_BYTES))
        left -= len(content)
        process = parse_process(content.decode("utf-8", "replace"))
        processes += [process] if process is not None else []
    packages: Dict[str, Mapping[str, str]] = {}
    for key in sorted({process.packages for process in processes if _PACKAGES.fullmatch(process.packages)}):
        with suppress(codec.RecordError):
            found = codec.parse(_content(directory, key, max(0, min(left, 1 << 20))), where=key)
            packages.update(codec.decode(RunEvidence, {"packages": {key: found}}, where=key).packages)
            left -= 1 << 20
    return RunEvidence(len(names), len(names) - len(processes), packages, in_order(processes))


def _content(directory: str, name: str, most: int) -> bytes:
    return content_of(os.path.join(directory, name), most, follow_link=False)


def collect_evidence(run: RunDir, secrets: Sequence[str]) -> bool:
    """Write evidence.jsonl. Returns whether there was evidence. Raises OSError."""
    evidence = read_evidence(run.evidence)
    if evidence is None:
        return False
    parts = [RunEvidence(evidence.counted, evidence.unread, evidence.packages)]
    parts += [RunEvidence(processes=(process,)) for process in evidence.processes]
    written = b""
    for part in parts:
        text = codec.to_json(masked_record(part, secrets), versioned=False, compact=True)
        line = (text + "\n").encode("utf-8", "backslashreplace")
        written += line if len(written) + len(line) <= MAX_WRITTEN else b""
    replace_file(run.evidence_file, written)
    return True


def collect_left_evidence(run: RunDir, secrets: Sequence[str]) -> None:
    """Of a run that is over, what its agent could not collect. A directory that cannot be read is not seen."""
    if not os.path.lexists(run.evidence_file):
        with suppress(OSError, ValueError):
            collect_evidence(run, secrets)
