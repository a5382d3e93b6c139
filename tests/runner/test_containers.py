"""Containers are removed by the names in docker.json. The real docker is a stand-in that notes its words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ci_tasks.runner import containers

if TYPE_CHECKING:
    from tests.runner.conftest import Run

FAKE = """\
#!/bin/sh
echo "${0##*/} $* [$DOCKER_HOST]" >> "$NOTES"
[ ! -e "$NOTES.slow" ] || exec sleep 300
exit 1
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-ins note how they were called."""
    (tmp_path / "fake").mkdir()
    for name in ("docker", "podman"):
        program = tmp_path / "fake" / name
        program.write_text(FAKE)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'fake'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return tmp_path / "notes"


def _entry(name: str | None, runtime: str = "docker") -> dict[str, Any]:
    return {"ci": [], "here": [], "deviations": [], "name": name, "runtime": runtime}


def _removed(notes: Path) -> list[str]:
    return notes.read_text().splitlines() if notes.exists() else []


CASES: list[tuple[str, Any, list[str]]] = [
    ("no call", [], []),
    ("one", [_entry("a")], ["docker rm --force --volumes a []"]),
    ("several at once", [_entry("a"), _entry("a-2")], ["docker rm --force --volumes a a-2 []"]),
    ("a pull", [_entry(None)], []),
    ("without containers", [_entry("a", "none")], []),
    ("podman", [_entry("a", "podman")], ["podman rm --force --volumes a []"]),
    ("another program", [_entry("a", "/bin/evil")], []),
    ("no list", {"name": "a"}, []),
    ("no objects", ["a", 3, None], []),
]


@pytest.mark.parametrize(("entries", "calls"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_containers_are_removed_by_name(run: Run, notes: Path, entries: Any, calls: list[str]) -> None:
    run.write("")
    Path(run.paths.docker).write_text(json.dumps(entries))
    containers.remove(str(run.path))
    assert _removed(notes) == calls


def test_without_a_docker_call_or_a_docker_nothing_happens(
    run: Run, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    containers.remove(str(run.path))
    Path(run.paths.docker).write_text(json.dumps([_entry("a")]))
    monkeypatch.setenv("PATH", "")
    containers.remove(str(run.path))
    assert not _removed(notes)


def test_the_daemon_is_the_one_that_the_job_used(run: Run, notes: Path) -> None:
    run.write("", host_env={"DOCKER_HOST": "unix:///other"})
    Path(run.paths.docker).write_text(json.dumps([_entry("a")]))
    containers.remove(str(run.path))
    assert _removed(notes) == ["docker rm --force --volumes a [unix:///other]"]


def test_a_daemon_that_does_not_answer_keeps_no_run_from_ending(
    run: Run, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "PATIENCE", 0.2)
    Path(f"{notes}.slow").touch()
    Path(run.paths.docker).write_text(json.dumps([_entry("a"), _entry("b", "podman")]))
    containers.remove(str(run.path))
    assert len(_removed(notes)) == 2


def test_a_run_removes_its_containers_at_every_end(run: Run, notes: Path, until: Callable[..., Any]) -> None:
    """After their clients are gone, since a client could still start one."""
    words = {"NOTES": str(notes), "PATH": os.environ["PATH"]}
    script = f"""\
echo '{json.dumps([_entry("a")])}' > "$CI_TASKS_RUN_DIR/docker.json"
touch "$CI_TASKS_RUN_DIR/ready"
sleep 300"""
    run.start(script, **words)
    until(lambda: run.has("ready"))
    run.cancel()
    run.ended()
    assert _removed(notes) == ["docker rm --force --volumes a []"]
