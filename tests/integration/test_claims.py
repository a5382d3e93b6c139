"""A host's word about a run is shown and judged here; nothing of it decides what is removed, run or written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.run_directory import RunDir, read_status
from tests import fixtures as support

SIM = """\
hosts:
  local: {kind: local}
  box: {kind: ssh, address: box, runtime: none, gpus: 8, simulate: true}
"""
REWRITES_ITS_PLAN = """\
import json, os, pathlib
plan = pathlib.Path(os.environ["CI_TASKS_RUN_DIR"], "plan.json")
told = json.loads(plan.read_text())
told.update(json.loads({claims!r}))
plan.write_text(json.dumps(told))
print("step 0: {{'x': 1}}", flush=True)
"""


@pytest.fixture
def box(sshd: Any) -> Any:
    return sshd.start("box")


@pytest.fixture
def owner(person: Any, sshd: Any, box: Any) -> Any:
    """Whoever begins the run."""
    hosts = person.home.with_name("hosts.yaml")
    hosts.write_text(SIM)
    person.env.update(sshd.env, CI_TASKS_HOSTS=str(hosts))
    return person


@pytest.fixture
def colleague(owner: Any, tmp_path: Path) -> Any:
    """Somebody else, with runs of their own, who comes to look at it."""
    return support.Person(tmp_path / "colleague", owner.checkout, dict(owner.env))


def test_a_plan_that_a_job_rewrote_removes_nothing_on_the_client_that_attaches_to_it(
    owner: Any, colleague: Any, box: Any, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis.tex").write_text("years of work")
    claims = json.dumps(
        {
            "owned": [str(victim)],
            "workspace": str(victim),
            "id": "../../victim",
            "row": "another",
            "host_env": {"PATH": str(victim), "DOCKER_HOST": "tcp://elsewhere"},
            "container": {"runtime": "docker", "name": "theirs", "labels": {"ci-tasks.dir": "theirs"}},
        }
    )
    owner.write("tests/test_tiny_ckpt.py", REWRITES_ITS_PLAN.format(claims=claims))
    said = owner.ci_tasks("remote", "--host", "box", "ckpt", "--only", "async", "--detach")
    assert said.code == 0, said.out + said.err
    (listed,) = owner.ci_tasks("runs", "--json").json
    (run,) = (RunDir(str(path)) for path in (box.home / ".ci-tasks/runs").glob("*/01"))
    support.until(lambda: read_status(run).has_ended, "the job has ended, and rewritten its plan")
    said = colleague.ci_tasks("attach", listed["id"], "--host", "box")
    (mirror,) = colleague.home.glob("runs/*/01")
    assert not (mirror / "plan.json").exists()
    assert not (mirror / "run.sh").exists()
    (record,) = colleague.records()
    assert (record["id"], record["host"]) == (f"{mirror.parent.name}.01", "box")
    said = colleague.ci_tasks("clean", "--days", "0.0000001")
    assert said.code == 0, said.out + said.err
    assert "removed" in said.out
    assert (victim / "thesis.tex").read_text() == "years of work"
    assert not list(colleague.home.glob("runs/*/*"))
    assert owner.ci_tasks("fetch", "last").code == 0
    assert owner.ci_tasks("clean", "--days", "0.0000001").code == 0
    assert (victim / "thesis.tex").read_text() == "years of work"
