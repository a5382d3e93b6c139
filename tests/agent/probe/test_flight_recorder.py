"""torch's flight recorder: on in processes that import torch, as the job has it where the job says so."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci_tasks.agent.probe import set_flight_recorder
from tests.agent.probe.interpreters import Interpreter, make_interpreter

SIZE, OLD_SIZE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
PIPE, DUMP, OLD_DUMP = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
OURS = {SIZE: "2000", PIPE: "/e/7-1-ab.", DUMP: "/e/7-1-ab.fr-"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, OURS),
        ({SIZE: "10"}, {**OURS, SIZE: "10"}),
        ({OLD_SIZE: "10"}, {OLD_SIZE: "10", PIPE: OURS[PIPE], DUMP: OURS[DUMP]}),
        ({PIPE: "/tmp/p", OLD_DUMP: "/tmp/d"}, {SIZE: "2000", PIPE: "/tmp/p", OLD_DUMP: "/tmp/d"}),
        # What a parent with the probe has set is the parent's.
        ({SIZE: "2000", PIPE: "/e/3-1-cd.", DUMP: "/e/3-1-cd.fr-"}, OURS),
        # Off, by the job's own word.
        ({SIZE: "0"}, {SIZE: "0"}),
        ({OLD_SIZE: "0"}, {OLD_SIZE: "0"}),
    ],
)
def test_what_the_job_sets_stays(
    monkeypatch: pytest.MonkeyPatch, given: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    monkeypatch.setattr(os, "mkfifo", lambda path, mode: None)
    monkeypatch.setattr(os, "unlink", lambda path: None)
    monkeypatch.setattr(os, "environ", environ := dict(given))
    set_flight_recorder("/e", "/e/7-1-ab.jsonl")
    assert environ == expected


def test_where_no_pipe_can_be_made_torch_is_not_asked_for_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "environ", {})
    with pytest.raises(FileNotFoundError):
        set_flight_recorder(str(tmp_path), str(tmp_path / "missing/7-1-ab.jsonl"))
    assert os.environ == {}


TORCH = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if 'TORCH' in k}))"


def printed(python: Interpreter, *words: str, **env: str) -> dict[str, str]:
    code, out, errors = python(*words, env=env)
    assert code == 0, errors
    found: dict[str, str] = json.loads(out)
    return found


def test_only_a_process_that_imports_torch_has_it_on(tmp_path: Path) -> None:
    python = make_interpreter(tmp_path)
    python.install(torch="")
    assert printed(python, "-c", TORCH) == {}
    noted = f"import glob; files = glob.glob({python.run.evidence + '/*.jsonl'!r})"
    noted += f"; assert [1 for file in files if os.environ[{PIPE!r}] in open(file).read()]"  # and not at its end alone
    seen = printed(python, "-c", f"import torch; {TORCH}; {noted}", RANK="3")
    (process,) = (process for process in python.processes() if process.env.get("RANK") == "3")
    assert seen == {SIZE: "2000", PIPE: process.env[PIPE], DUMP: process.env[DUMP]}
    assert os.path.dirname(seen[PIPE]) == python.run.evidence
    assert not list(Path(python.run.evidence).glob("*pipe*"))
