"""`retry`: a failed step runs again with what was edited meanwhile, in the workspace that its run kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures as support
from tests.fixtures import ends
from tests.parts import dockerd
from tests.parts.engine import Engine, containers

WORKFLOW = """\
name: PR Test
on: pull_request
jobs:
  e2e-test-mend:
    runs-on: [self-hosted, cpu]
    timeout-minutes: 5
    CONTAINER
    env: {KEY: "${{ secrets.KEY }}"}
    steps:
      - uses: actions/checkout@v4
      - name: Prepare
        run: |
          echo preparing
          echo made > made-by-prepare
          mkdir -p tools && echo 'echo a tool' > tools/tool && chmod +x tools/tool
          echo "WORD=of prepare" >> "$GITHUB_ENV"
          echo "$PWD/tools" >> "$GITHUB_PATH"
      - name: Test
        run: source tests/job.sh
      - name: Always
        if: always()
        run: echo "after the test"
"""
FAILS = "echo WORD=of the failed test >> $GITHUB_ENV; touch tried; exit 3\n"
PASSES = 'tool; echo "word $WORD, $(cat made-by-prepare) $KEY"; ls; cat other/* || :; echo "step 0: {\'loss\': 1}"\n'


@pytest.fixture(params=["here", "box"])
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def someone(tmp_path: Path, sshd: Any, request: pytest.FixtureRequest) -> Any:
    box = sshd.start("box")
    person: Any = support.Person(tmp_path / "home", tmp_path / "checkout", {**sshd.env, "KEY": "correct-horse-battery"})
    person.write(".github/workflows/pr-test.yml", WORKFLOW.replace("CONTAINER", "needs: []"))
    person.write("tests/job.sh", FAILS)
    person.write("other/one", "one\n")
    person.write_hosts("hosts: {box: {kind: ssh, address: box, runtime: none}, here: {kind: local, runtime: none}}\n")
    subprocess.run(["git", "init", "--quiet"], cwd=person.checkout, check=True)
    person.box = box
    return person


def fail(person: Any, host: str) -> str:
    """A run that failed and was kept: its id."""
    said = person.ci_tasks("remote", "--host", host, "mend", "--keep")
    assert said.code == 1, said.out + said.err
    return str(person.records()[0]["id"])


def workspaces(person: Any) -> list[Path]:
    homes = (person.box.home / ".ci-tasks/runs", person.home / "runs")
    return [path for home in homes for path in home.rglob("workspace")]


def log(person: Any) -> str:
    return str(next(iter(person.logs().values())))


def test_failed_step_and_those_after_it_run_again_with_the_edit_in_the_kept_workspace(someone: Any, host: str) -> None:
    id = fail(someone, host)
    someone.write("tests/job.sh", PASSES)
    someone.write("other/two", "two\n")
    (someone.checkout / "other/one").unlink()
    said = someone.ci_tasks("retry", "last")
    assert said.code == 0, said.out + said.err
    assert f"{id} again from step 2 on {host}; tree " in said.out
    output = log(someone)
    assert "preparing" not in output and "after the test" in output
    assert "a tool" in output and "word of prepare, made ***" in output, (
        "what the first step left counts as it was left"
    )
    assert "tried" in output and "two" in output and "one" not in output
    (record,) = someone.records()
    assert (record["status"], record["retry_of"]) == ("passed", id)
    assert {"what": "retried", "ci": "all steps", "here": f"steps 2.. of run {id}"}.items() <= next(
        item for item in record["deviations"] if item["what"] == "retried"
    ).items()
    assert record["checkout"]["tree"] in said.out or record["checkout"]["tree"]
    assert workspaces(someone) == []
    said = someone.ci_tasks("retry", id)
    assert (said.code, "was not kept" in said.err) == (2, True), said.err
    assert " --keep`" in said.err  # inside of the command to type


def test_a_retry_that_passed_says_so_though_the_record_of_the_first_run_is_gone(someone: Any) -> None:
    id = fail(someone, "box")
    assert someone.ci_tasks("retry", "last", "--keep").code == 1
    shutil.rmtree(someone.home / "runs" / id.partition(".")[0])
    someone.write("tests/job.sh", PASSES)
    said = someone.ci_tasks("retry", "last")
    assert (said.code, said.err) == (0, ""), said.out + said.err
    assert workspaces(someone) == []


def test_a_file_of_the_checkout_that_the_job_has_changed_is_an_error_that_names_it(someone: Any, host: str) -> None:
    someone.write("tests/job.sh", "echo changed > other/one; exit 3\n")
    fail(someone, host)
    someone.write("tests/job.sh", PASSES)
    said = someone.ci_tasks("retry", "last")
    assert said.code == 125, said.out + said.err
    (record,) = someone.records()
    assert "files of the checkout have changed since: 'other/one'" in record["reason"]
    assert "a tool" not in said.out
    someone.write("other/one", "from the checkout\n")
    said = someone.ci_tasks("retry", sorted(path.name for path in (someone.home / "runs").iterdir())[0])
    assert said.code == 0, said.out + said.err
    assert "from the checkout" in said.out


def test_an_interrupted_retry_is_cancelled_and_the_workspace_is_still_kept(someone: Any, host: str) -> None:
    fail(someone, host)
    someone.write("tests/job.sh", "echo here; sleep 600\n")
    started = someone.start("retry", "last")
    support.until(lambda: "here" in "".join(path.read_text() for path in someone.home.glob("runs/*/01/log")), "it runs")
    said = someone.ci_tasks("retry", sorted(path.name for path in (someone.home / "runs").iterdir())[0])
    assert (said.code, "another retry runs in its workspace" in said.out) == (125, True), said.out + said.err
    os.kill(started.pid, signal.SIGINT)
    ends(started, 130)
    assert workspaces(someone)


WHOLE = "container: {image: IMAGE, options: --ipc=host}"


def test_a_job_with_a_container_of_its_own_begins_with_its_first_step(someone: Any, engine: Engine) -> None:
    text = WORKFLOW.replace("CONTAINER", WHOLE.replace("IMAGE", dockerd.IMAGE)).replace(
        "echo preparing", "echo preparing; touch /made-in-the-container"
    )
    someone.write(".github/workflows/pr-test.yml", text)
    host = {"kind": "ssh", "address": "box", "pull": "never", "runtime": engine.runtime, "env": dict(engine.environ)}
    someone.write_hosts(json.dumps({"hosts": {"box": host}}))
    fail(someone, "box")
    someone.write("tests/job.sh", "ls /made-in-the-container || exit 5\n" + PASSES.replace("tool;", "echo a tool;"))
    said = someone.ci_tasks("retry", "last")
    assert said.code == 0, said.out + said.err
    assert "preparing" in log(someone) and "word of prepare" in log(someone)
    assert not containers(engine)
    assert workspaces(someone) == []
