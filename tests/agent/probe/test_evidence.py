"""What is read of files that a job can write as it likes, and what comes of it for the client."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ci_tasks.agent import evidence
from ci_tasks.agent.evidence import collect_evidence, parse_lines, read_evidence
from ci_tasks.agent.run_directory import RunDir

START = {"event": "start", "started_at": 1.5, "pid": 7, "start": 3, "argv": ["python", "x.py"], "env": {"RANK": "3"}}
NAME = "7-3-0123abcd.jsonl"


def lines(*events: object) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def run_with(tmp_path: Path, **files: str) -> RunDir:
    run = RunDir(str(tmp_path))
    os.makedirs(run.evidence)
    for name, text in files.items():
        Path(run.evidence, name).write_text(text)
    return run


def test_lines_that_are_none_and_values_of_another_type_are_left_out(tmp_path: Path) -> None:
    text = lines(START, {"event": "import", "imports": [{"name": "a"}]}, {"event": "environ"}, [], 3)
    text += '{"event": "end", "end": "exit\n{"event": "environ", "env": {"RANK": "4"}}\nCurrent thread\n'
    text += lines({"imports": [{"name": "b"}]}, {"argv": 3}, {"imports": [{"name": 3}]})
    others = {"8-3-0123abcd.jsonl": lines({**START, "pid": "7"}), "9-3-0123abcd.jsonl": ""}
    found = read_evidence(run_with(tmp_path, **{NAME: text}, **others).evidence)
    [process] = found.processes
    assert (process.pid, process.rank, [each.name for each in process.imports], process.end) == (7, 4, ["a", "b"], "")
    assert (found.counted, found.unread) == (3, 2)


def test_links_pipes_and_other_files_are_not_read(tmp_path: Path) -> None:
    run = run_with(tmp_path, **{NAME: lines(START), "other": "x", "8-1-0123abcd.jsonl.x": lines(START)})
    secret = tmp_path / "secret"
    secret.write_text(lines(START) + "root:x:0:0")
    os.symlink(secret, os.path.join(run.evidence, "9-1-0123abcd.jsonl"))
    os.mkfifo(os.path.join(run.evidence, "9-2-0123abcd.jsonl"))
    os.mkdir(os.path.join(run.evidence, "9-3-0123abcd.jsonl"))
    found = read_evidence(run.evidence)
    assert ([process.pid for process in found.processes], found.counted, found.unread) == ([7], 4, 3)
    os.rename(run.evidence, tmp_path / "moved")
    os.symlink(tmp_path / "moved", run.evidence)
    assert read_evidence(run.evidence).counted == 0
    collect_evidence(run)
    assert not os.path.exists(run.evidence_file), "that no Python was seen would be said of it"


def test_what_is_read_and_written_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = {"argv": ["x" * 1000] * 100}
    run = run_with(tmp_path, **{f"{pid}-3-0123abcd.jsonl": lines({**START, "pid": pid, **argv}) for pid in range(1, 6)})
    monkeypatch.setattr(evidence, "MAX_WRITTEN", 250_000)
    monkeypatch.setattr(evidence, "MAX_PROCESSES", 4)
    collect_evidence(run)
    assert os.path.getsize(run.evidence_file) <= evidence.MAX_WRITTEN
    found = parse_lines(Path(run.evidence_file).read_text())
    assert (found.counted, found.unread, len(found.processes)) == (5, 1, 2)


def test_it_arrives_as_it_was(tmp_path: Path) -> None:
    frames = [{"file": "/x.py", "line": 3, "function": "load"}]
    chain = [{"type": "ValueError", "message": "bad \ud800", "frames": frames}]
    noted = {"t": 1.7, "where": "thread", "name": "T", "chain": chain}
    key = "packages-" + "0" * 16
    text = lines(START, {"event": "exception", "exceptions": [noted]}, {"event": "packages", "packages": key})
    run = run_with(tmp_path, **{NAME: text, key: json.dumps({"torch": "2.0"})})
    collect_evidence(run)
    found = parse_lines(Path(run.evidence_file).read_text())
    [process] = found.processes
    assert process.exceptions[0].chain[0].frames[0].function == "load"
    assert found.packages[process.packages] == {"torch": "2.0"}
