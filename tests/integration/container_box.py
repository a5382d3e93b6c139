"""A host's home with one run directory, on a container engine that is real."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci_tasks.agent import archive, processes, run_directory
from ci_tasks.agent.__main__ import create
from ci_tasks.agent.docker_argv import ContainerRules
from ci_tasks.agent.records import Plan, Status
from tests import fixtures as support
from tests.parts import dockerd
from tests.parts.engine import Engine
from tests.parts.processes import agent_words

PYTHON = "/usr/bin/python3"  # one that another user may run too


class Box:
    """A host's home with one run directory, and the engine that its jobs use."""

    def __init__(self, home: Path, engine: Engine) -> None:
        self.home, self.engine = home, engine
        self.environ = dict(engine.environ)
        self.run = run_directory.RunDir(str(home / "runs" / "a batch" / "01"))
        self.path = Path(self.run.path)
        self.workspace = self.path / "workspace"
        self.name = "ci-tasks-07"
        self.label = f"ci-tasks.dir={self.path}"
        self.as_user: list[str] = []

    def write(self, inside: str, *words: str, after: str = "", image: str = dockerd.IMAGE, **plan: Any) -> None:
        """A job whose script runs `inside` in a container, and says how that ended."""
        flags = " ".join(["--rm", "--network host", *words])
        script = 'PATH="$CI_TASKS_RUN_DIR/bin:$PATH"\n'
        script += f"docker run {flags} {image} bash -c {shlex.quote(inside)}\n{after}"
        self.workspace.mkdir(parents=True)
        create(self.run, replace(self.plan(), script=script, **plan), archive.build())
        adapter = Path(self.run.adapter)
        adapter.write_text(adapter.read_text().replace(shlex.quote(sys.executable), PYTHON))

    @property
    def go(self) -> Path:
        """What a job waits for with `until_go`. It lies among the artifacts, which host and container both see: the
        end of a container kills a `docker exec` inside it, so that one that lets the job end can fail itself."""
        return Path(self.run.artifacts, "go")

    @property
    def until_go(self) -> str:
        return f"until [ -e {shlex.quote(str(self.go))} ]; do sleep 0.05; done"

    def plan(self) -> Plan:
        rules = ContainerRules(
            runtime=self.engine.runtime,
            pull="never",
            name=self.name,
            labels={"ci-tasks.run": "07", "ci-tasks.dir": str(self.path)},
            volumes=(self.run.artifacts,),
        )
        return Plan(
            id="07",
            host_env=self.environ,
            container=rules,
            timeout_minutes=5,
            stall_minutes=5,
            grace_seconds=1,
            workspace=str(self.workspace),
            image=dockerd.IMAGE,
        )

    def change_agent(self, *changes: tuple[str, str]) -> None:
        """Constants of the agent's sources, in its zip file."""
        out = io.BytesIO()
        changed = dict.fromkeys(changes, 0)
        with zipfile.ZipFile(self.run.agent) as old, zipfile.ZipFile(out, "w") as new:
            for entry in old.infolist():
                text = old.read(entry).decode()
                for before, after in changes:
                    changed[before, after] += before in text
                    text = text.replace(before, after)
                new.writestr(entry.filename, text)
        assert set(changed.values()) == {1}, changed
        Path(self.run.agent).write_bytes(out.getvalue())

    def call(self, word: str) -> None:
        words = [*self.as_user, *agent_words(PYTHON, self.run.agent, word, self.run.path)]
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.home), "S3_KEY": "correct-horse"}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")

    def start(self) -> None:
        self.call("start")

    def status(self) -> Status:
        return run_directory.read_status(self.run)

    def ended(self) -> Status:
        support.until(lambda: self.status().state == "ended", "the run ends")
        return self.status()

    def log(self) -> str:
        path = Path(self.run.log)
        return path.read_text() if path.exists() else ""

    def json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())

    def containers(self, *words: str) -> list[str]:
        return self.engine.call("ps", *words, "--filter", f"label={self.label}", "--format", "{{.Names}}").split()

    def files(self) -> list[str]:
        top = Path(self.run.artifacts)
        return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())

    def is_gone(self) -> None:
        """Nothing of the run is left but its record."""
        assert self.containers("--all") == []
        assert not self.workspace.exists()
        assert processes.of_run(str(self.path), None) == []
        assert not [path.name for path in self.path.iterdir() if path.name.startswith(".")]

    def close(self) -> None:
        """Whatever a test left."""
        status = self.status()
        if processes.alive(status):
            os.kill(status.pid or 0, 9)
        processes.kill_all(str(self.path), processes.orphaned_group(status, str(self.path)))
        for name in self.containers("--all"):
            self.engine.call("rm", "--force", name)
