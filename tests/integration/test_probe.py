"""The probe in a whole run: from the row's venv to the file that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ci_tasks.agent.probe.records import parse_lines

PROGRAM = """\
import threading
from tiny_slime import metrics
thread = threading.Thread(target=lambda: {}["no such key"])
thread.start()
thread.join()
raise ValueError("the reason")
"""


def test_a_row_that_fails_leaves_what_its_processes_noted(person: Any) -> None:
    person.write("tests/test_tiny_ckpt.py", PROGRAM)
    [record] = person.ci_tasks("remote", "--host", "sim", "ckpt", "--only", "async-save", "--json").json["runs"]
    assert record["status"] == "failed"
    assert "probe" in [deviation["what"] for deviation in record["deviations"]]
    run = Path(person.home, "runs", *record["id"].split("."))
    assert not (run / "evidence").exists()
    evidence = parse_lines((run / "evidence.jsonl").read_text())
    test = evidence.processes[-1]
    assert test.argv[1] == "tests/test_tiny_ckpt.py" and test.end == "exit"
    assert test.parent in [process.key for process in evidence.processes], "the lock script"
    failures = [(failure.where, failure.chain[0].type) for failure in test.exceptions]
    assert failures == [("thread", "builtins.KeyError"), ("main", "builtins.ValueError")]
    origins = {module.name: module.origin for module in test.modules}
    assert origins["tiny_slime"].endswith("/workspace/tiny_slime/__init__.py")
