"""The other nodes of a row over several: one more step with the words of CI's own run, which ends with the row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ci_tasks.agent.containers import adapter
from ci_tasks.agent.containers.docker_argv import parse_run, render
from ci_tasks.agent.containers.ray_nodes import (
    joining_run,
    other_node_count,
    srun_on_other_nodes,
    with_node,
    with_token,
)

ROOT = Path(adapter.__file__).parents[3]
# The step on the other nodes says who it is and stays; the one of the head runs its words.
SRUN = """\
#!/bin/sh
if [ "$1" = --relative=1 ]; then
  printf '%s\\n' "$@" > {root}/words; echo "0: joined"; {then}echo $$ > {root}/pid; exec sleep 60
fi
while [ "${{1#--}}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.mark.parametrize(("names", "count"), [(None, 0), ("", 0), ("a", 0), ("a\nb", 1), ("a\nb\nc\n", 2)], ids=repr)
def test_how_many_other_nodes_there_are(names: str | None, count: int) -> None:
    assert other_node_count({} if names is None else {"SLURM_JOB_HOSTNAMES": names}) == count


@pytest.mark.parametrize("own", [{}, {"RAY_AUTH_TOKEN": "a"}, {"RAY_AUTH_MODE": "disabled"}], ids=str)
def test_what_a_person_says_of_rays_token_stays(own: dict[str, str]) -> None:
    environment = dict(own)
    with_token(environment)
    assert own.items() <= environment.items()
    assert ("RAY_AUTH_TOKEN" in environment) is (environment["RAY_AUTH_MODE"] == "token")


@pytest.mark.parametrize("runtime", ["pyxis", "none"])
def test_all_nodes_have_one_token_of_rays(tmp_path: Path, runtime: str) -> None:
    words = f"printenv RAY_AUTH_MODE RAY_AUTH_TOKEN; until [ -e {tmp_path}/pid ]; do sleep 0.1; done"
    then = f"printenv RAY_AUTH_MODE RAY_AUTH_TOKEN > {tmp_path}/token; "
    done = _docker(tmp_path, runtime, "run", "img", "bash", "-c", words, then=then)
    assert (tmp_path / "token").read_text() == done.stdout
    assert done.stdout.startswith("token\n") and len(done.stdout) > 64


def test_they_join_with_cis_own_words() -> None:
    argv = render(joining_run(parse_run(["run", "-i", "-v", "/a:/b", "--entrypoint", "x", "img", "bash", "-c", "y"])))
    assert argv[:-1] == ["run", "-v", "/a:/b", "--entrypoint", "bash", "img", "-c"]
    assert 'ray start --address="$MASTER_ADDR:6379"' in argv[-1]


def test_a_step_of_this_node_and_a_program_become_a_step_of_the_others() -> None:
    argv = srun_on_other_nodes(["srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n3", "--x", "bash"], 3)
    assert argv == ["srun", "--relative=1", "--label", "--overlap", "--nodes=3", "--ntasks=3", "--x", "bash"]
    made = srun_on_other_nodes(["apptainer", "run"], 3)
    assert (made[:3], made[-2:]) == (["srun", "--relative=1", "--label"], ["apptainer", "run"])
    assert {"--nodes=3", "--ntasks=3", "--export=ALL"} <= set(made)


def _docker(root: Path, runtime: str, *args: str, then: str = "") -> subprocess.CompletedProcess[str]:
    (root / "plan.json").write_text(json.dumps({"container": {"runtime": runtime}}))
    srun = root / "srun"
    srun.write_text(SRUN.format(root=root, then=then))
    srun.chmod(0o755)
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ci_tasks.agent.containers.adapter import main; "
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_HOSTNAMES": "a\nb", "MASTER_ADDR": "10.0.0.1"}
    with open(root / "err", "w") as err:
        return subprocess.run(
            [sys.executable, "-c", program + f"sys.exit(main(sys.argv[1:], {str(root)!r}))", *args],
            env={"PATH": f"{root}:/usr/bin:/bin", **job},
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.mark.parametrize("runtime", ["pyxis", "none"])
def test_the_others_are_there_while_the_head_runs_and_no_longer(tmp_path: Path, runtime: str) -> None:
    """The head waits for them, and ends."""
    wait = (
        f"until [ -s {tmp_path}/pid ] && grep -q joined {tmp_path}/err; do sleep 0.05; done; echo $MASTER_ADDR; exit 5"
    )
    done = _docker(tmp_path, runtime, "run", "img", "bash", "-c", wait)
    assert (done.returncode, done.stdout) == (5, "10.0.0.1\n")
    srun_args = (tmp_path / "words").read_text()
    assert ("--container-image=img" in srun_args) is (runtime == "pyxis")
    assert "container-1" not in srun_args  # a shared disk is no place for the sockets of two nodes' Ray
    assert (tmp_path / "err").read_text().splitlines() == [
        "ci-tasks: the row runs on a; b join its Ray, and their lines begin with their names",
        "b: joined",
    ]
    other = Path("/proc") / (tmp_path / "pid").read_text().strip() / "cmdline"
    for _ in range(100):
        if not other.exists() or not other.read_bytes():
            return
        time.sleep(0.02)
    raise AssertionError("the step of the other nodes is still there")


def test_a_node_that_leaves_is_named_while_the_row_goes_on(tmp_path: Path) -> None:
    wait = f"while ! grep -q 'of srun' {tmp_path}/err; do sleep 0.05; done"
    _docker(tmp_path, "none", "run", "img", "bash", "-c", wait, then="exit 127; ")
    said = (tmp_path / "err").read_text().splitlines()
    assert said[1:] == ["b: joined", "ci-tasks: b left the row with exit code 127 of srun"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"0: joined\n", b"b: joined\n"),
        (b" 1: a: text\n", b"c: a: text\n"),
        (b"7: of nobody\n", b"7: of nobody\n"),
        (b"srun: error: c: task 1: Killed\n", b"srun: error: c: task 1: Killed\n"),
    ],
)
def test_each_line_says_its_node(line: bytes, shown: bytes) -> None:
    assert with_node(line, ["b", "c"]) == shown


# what stands on a node's PATH as ray, the head's port → what the node says first
JOINS = {
    "there is no ray": (None, "closed", "this node cannot join Ray at 127.0.0.1:6379: no program ray on PATH"),
    "no way to the head": ("exit 0", "nowhere", "this node cannot join Ray at no.such.invalid:6379: "),
}


@pytest.mark.parametrize(("ray", "head", "said"), JOINS.values(), ids=JOINS)
def test_a_node_that_cannot_join_says_so_at_once(tmp_path: Path, ray: str | None, head: str, said: str) -> None:
    if ray is not None:
        (tmp_path / "ray").write_text(f"#!/bin/sh\n{ray}\n")
        (tmp_path / "ray").chmod(0o755)
    command = joining_run(parse_run(["run", "img", "x"])).command
    address = "no.such.invalid" if head == "nowhere" else "127.0.0.1"
    joining = subprocess.Popen(
        ["bash", *command],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "MASTER_ADDR": address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert joining.stdout is not None
    try:
        assert said in joining.stdout.readline()
    finally:
        os.killpg(joining.pid, signal.SIGKILL)
        joining.communicate()


def test_docker_cannot_start_them(tmp_path: Path) -> None:
    done = _docker(tmp_path, "docker", "run", "img", "true")
    assert done.returncode == 125
    assert "docker cannot start the job's other nodes" in (tmp_path / "err").read_text()
