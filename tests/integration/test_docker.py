"""The container adapter in front of a real docker and a real podman, with the flags that CI gives."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.containers import adapter
from ci_tasks.agent.containers.docker_argv import BOOLEANS, SHORT
from ci_tasks.logs.causes import JobEnd
from ci_tasks.logs.reading import read_log
from ci_tasks.records import Evidence
from ci_tasks.results.verdict import judge
from tests import fixtures as support
from tests.parts import dockerd
from tests.parts.engine import Engine

ROOT = Path(adapter.__file__).parents[2]
ADAPTER = """\
#!/bin/sh
exec {python} -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); from ci_tasks.agent.containers.adapter import main
sys.exit(main(sys.argv[2:], sys.argv[1]))' {root} {run_dir} "$@"
"""
NAME = "ci-tasks-test"
CI_FLAGS = ["--rm", "--pull=always", "--network", "host", "--ipc=host", "--shm-size=32g", "--privileged"]
CI_LIMITS = ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864", "--memory=0", "--memory-swap=0"]
SOON_S = 40


class Adapted:
    """A run directory whose docker stands before the real engine."""

    def __init__(self, run_dir: Path, engine: Engine) -> None:
        self.run_dir = run_dir
        self.engine = engine
        self.program = run_dir / "bin" / "docker"
        self.program.parent.mkdir(parents=True)
        words = {"python": sys.executable, "root": str(ROOT), "run_dir": str(run_dir)}
        self.program.write_text(ADAPTER.format(**{key: shlex.quote(word) for key, word in words.items()}))
        self.program.chmod(0o755)
        self.rules()

    def rules(self, **container: Any) -> None:
        rules = {
            "runtime": self.engine.runtime,
            "pull": "never",
            "name": NAME,
            "image": {"slime:latest": dockerd.IMAGE},
            **container,
        }
        (self.run_dir / "plan.json").write_text(json.dumps({"container": rules}))

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        path = f"{self.program.parent}{os.pathsep}{os.environ['PATH']}"
        environ = {**os.environ, **self.engine.environ, "PATH": path, **environ}
        pipe = subprocess.PIPE
        return subprocess.Popen([str(self.program), *words], env=environ, stdout=pipe, stderr=pipe, text=True)

    def run(self, *words: str, **environ: str) -> tuple[int, str, str]:
        started = self.start(*words, **environ)
        out, err = started.communicate(timeout=SOON_S)
        return started.returncode, out, err

    def real(self, *words: str) -> str:
        return self.engine.call(*words)

    def call(self) -> Any:
        """The last of docker.json."""
        return json.loads((self.run_dir / "docker.json").read_text())["calls"][-1]

    def await_container(self, name: str = NAME) -> dict[str, Any]:
        support.until(lambda: self.real("ps", "-q", "--filter", f"name=^{name}$"), f"the container {name}")
        found: dict[str, Any] = json.loads(self.real("inspect", name))[0]
        return found

    def names(self) -> list[str]:
        return self.real("ps", "-a", "--format", "{{.Names}}").split()


def _ended(started: subprocess.Popen[str]) -> int:
    started.communicate(timeout=SOON_S)
    return started.returncode


@pytest.fixture
def adapted(tmp_path: Path, engine: Engine) -> Iterator[Adapted]:
    here = Adapted(tmp_path / "run dir's", engine)
    yield here
    if here.names():
        here.real("rm", "-f", *here.names())


def test_cis_flags_run_with_this_hosts_directories_and_the_exit_code_comes_through(
    adapted: Adapted, tmp_path: Path
) -> None:
    data = tmp_path / 'the data\'s "own"\nplace'
    (data / "sub").mkdir(parents=True)
    (data / "sub" / "file").write_text("found\n")
    adapted.rules(mounts={"/mnt/nvme0n1/slime_ci": str(data)}, env={"OUR_TOKEN": "t0p"}, volumes=[str(adapted.run_dir)])
    script = f'cat /models/file; pwd; echo "$GIVEN $HF_TOKEN $OUR_TOKEN"; ls "{adapted.run_dir}"; exit 42'
    words = ["run", *CI_FLAGS, *CI_LIMITS, "-v", "/mnt/nvme0n1/slime_ci/sub:/models:ro", "-w", "/tmp"]
    code, out, err = adapted.run(
        *words, "-e", "GIVEN", "-e", "HF_TOKEN=s3cret", "slime:latest", "bash", "-c", script, GIVEN="given here"
    )
    assert out.splitlines() == [
        "found",
        "/tmp",
        "given here s3cret t0p",
        "bin",
        "docker.json",
        "docker.json.lock",
        "events.jsonl",
        "plan.json",
    ]
    assert (code, err) == (42, "")
    whats = {deviation["what"] for deviation in adapted.call()["deviations"]}
    refused = {"runtime", "shm-size", "memory-swap"} if adapted.engine.runtime == "podman" else set()
    assert whats & {"runtime", "shm-size", "memory-swap"} == refused


@pytest.mark.parametrize("engine", ["podman"], indirect=True)
def test_a_gpu_that_podman_does_not_know_is_the_environments_fault(adapted: Adapted) -> None:
    code, _, err = adapted.run("run", *CI_FLAGS, "--gpus", "device=77", "slime:latest", "true")
    ended = JobEnd("exit", code)
    verdict = judge(ended, Evidence("none"), read_log([err.encode()]).facts, test=None, containers=True)
    assert (code, verdict.status) == (126, "blocked")
    assert verdict.reason == "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=77"


def test_name_labels_and_words_of_the_running_container_are_those_recorded(adapted: Adapted) -> None:
    adapted.rules(labels={"ci-tasks.run": "7", "ci-tasks.host": "a b"})
    assert adapted.run("run", "--rm", "--network=host", "slime:latest", "true")[0] == 0
    words = [
        "run",
        "--rm",
        "--network=host",
        "--name",
        "theirs",
        dockerd.IMAGE,
        "bash",
        "-c",
        "sleep 60; :",
        "a' \n\"b",
    ]
    started = adapted.start(*words)
    found = adapted.await_container(NAME + "-2")
    entry = json.loads((adapted.run_dir / "docker.json").read_text())["calls"][1]
    assert found["Config"]["Labels"] == {"ci-tasks.run": "7", "ci-tasks.host": "a b"}
    assert (found["HostConfig"]["Init"], found["HostConfig"]["NetworkMode"]) == (True, "host")
    assert (entry["ci"], entry["name"], entry["runtime"]) == (words, NAME + "-2", adapted.engine.runtime)
    # The client's own argv, read from the kernel, is the recorded one to the byte.
    argv = Path(f"/proc/{started.pid}/cmdline").read_text().split("\0")[:-1]
    assert argv == [adapted.engine.runtime, *entry["here"]]
    adapted.real("rm", "-f", NAME + "-2")
    assert _ended(started) in (128 + signal.SIGKILL, 128 + signal.SIGTERM)  # docker's way and podman's


PULLS = [
    ("docker_daemon", "never", "No such image"),
    ("docker_daemon", "missing", "could not pull 127.0.0.1:1/absent:x: Error response from daemon: Get"),
    ("podman", "never", "image not known"),
]


@pytest.mark.parametrize(("engine", "pull", "message"), PULLS, indirect=["engine"])
def test_a_local_image_needs_no_registry_and_an_absent_one_is_dockers_125(
    adapted: Adapted, pull: str, message: str
) -> None:
    adapted.rules(pull=pull)
    flags = ["--rm", "--pull=always", "--network=host"]
    assert adapted.run("run", *flags, "slime:latest", "true") == (0, "", "")
    done = adapted.run("run", *flags, "127.0.0.1:1/absent:x", "true")
    assert done[0] == 125
    assert message in done[2]


def test_every_option_of_the_installed_docker_is_known_with_its_kind() -> None:
    if shutil.which("docker") is None:
        support.cannot("docker is not installed")
    text = subprocess.run(["docker", "run", "--help"], capture_output=True, text=True, check=True).stdout
    shown = re.findall(r"^ {2,6}(?:-(\w), )?--([a-z0-9-]+)(?: ([a-z0-9-]+))?(?:  |$)", text, re.MULTILINE)
    assert len(shown) > 90
    assert {name for _, name, value in shown if not value} <= BOOLEANS
    assert {name for _, name, value in shown if value} & BOOLEANS == set()
    letters = {letter: name for letter, name, _ in shown if letter}
    assert letters.items() <= SHORT.items() and len(letters) > 13, "Debian's docker, an older one, has no -q"
