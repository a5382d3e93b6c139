"""The last line of a log that grows says something; of the install steps our own program's lines are passed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.agent.run_directory import RunDir
from ci_tasks.hosts import provision
from ci_tasks.hosts.provision import InstallLog, last_line


def test_the_log_of_install_steps_is_passed_on_by_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, said = RunDir(str(tmp_path)), list[str]()
    log = InstallLog(run, said.append)
    for text in ("Collecting a\nci-tasks: 2 pack", "ages, new\n", "done\n"):
        with open(run.log, "a") as out:
            out.write(text)
        log.poll()
    monkeypatch.setattr(provision, "_REMINDER_S", 0.0)
    log.finish(0)
    assert said[1] == "2 packages, new"
    assert "install steps: 0 s: done" in said
    assert [line.rpartition(": ")[2][:7] for line in said[2:]] == ["done", "done in"]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("first\nlast\n\n", "last"),
        ("##[group]Run tests\npytest -q\n##[endgroup]\n", "pytest -q"),
        ("::endgroup::\n", ""),
        ("loading\n====================\n--------\n...\n", "loading"),
        ("======= 3 passed in 0.52s =======\n", "======= 3 passed in 0.52s ======="),
        ("", ""),
    ],
)
def test_it_is_the_last_one_that_says_something(log: str, expected: str, tmp_path: Path) -> None:
    run = RunDir(str(tmp_path))
    Path(run.log).write_text(log)
    assert last_line(run) == expected
