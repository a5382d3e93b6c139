"""The other nodes of a row over several: one more step with the words of CI's own run, which ends with the row."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ci_tasks.agent.containers import adapter
from ci_tasks.agent.containers.docker_argv import parse_run, render
from ci_tasks.agent.containers.ray_nodes import joining_run, other_node_count, srun_on_other_nodes

ROOT = Path(adapter.__file__).parents[3]
# The step on the other nodes says who it is and stays; the one of the head runs its words.
SRUN = """\
#!/bin/sh
if [ "$1" = --relative=1 ]; then
  printf '%s\\n' "$@" > {root}/words; echo joined; echo $$ > {root}/pid; exec sleep 60
fi
while [ "${{1#--}}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.mark.parametrize(("names", "count"), [(None, 0), ("", 0), ("a", 0), ("a\nb", 1), ("a\nb\nc\n", 2)], ids=repr)
def test_how_many_other_nodes_there_are(names: str | None, count: int) -> None:
    assert other_node_count({} if names is None else {"SLURM_JOB_HOSTNAMES": names}) == count


def test_they_join_with_cis_own_words() -> None:
    argv = render(joining_run(parse_run(["run", "-i", "-v", "/a:/b", "--entrypoint", "x", "img", "bash", "-c", "y"])))
    assert argv[:-1] == ["run", "-v", "/a:/b", "--entrypoint", "bash", "img", "-c"]
    assert 'ray start --address="$MASTER_ADDR:6379"' in argv[-1]


def test_a_step_of_this_node_and_a_program_become_a_step_of_the_others() -> None:
    argv = srun_on_other_nodes(["srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n3", "--x", "bash"], 3)
    assert argv == ["srun", "--relative=1", "--overlap", "--nodes=3", "--ntasks=3", "--x", "bash"]
    made = srun_on_other_nodes(["apptainer", "run"], 3)
    assert (made[:2], made[-2:]) == (["srun", "--relative=1"], ["apptainer", "run"])
    assert {"--nodes=3", "--ntasks=3", "--export=ALL"} <= set(made)


def _docker(root: Path, runtime: str, *args: str) -> subprocess.CompletedProcess[str]:
    (root / "plan.json").write_text(json.dumps({"container": {"runtime": runtime}}))
    srun = root / "srun"
    srun.write_text(SRUN.format(root=root))
    srun.chmod(0o755)
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ci_tasks.agent.containers.adapter import main; "
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_HOSTNAMES": "a\nb", "MASTER_ADDR": "10.0.0.1"}
    return subprocess.run(
        [sys.executable, "-c", program + f"sys.exit(main(sys.argv[1:], {str(root)!r}))", *args],
        env={"PATH": f"{root}:/usr/bin:/bin", **job},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


@pytest.mark.parametrize("runtime", ["pyxis", "none"])
def test_the_others_are_there_while_the_head_runs_and_no_longer(tmp_path: Path, runtime: str) -> None:
    """The head waits for them, and ends."""
    wait = f"while [ ! -s {tmp_path}/pid ]; do sleep 0.05; done; echo $MASTER_ADDR; exit 5"
    done = _docker(tmp_path, runtime, "run", "img", "bash", "-c", wait)
    assert (done.returncode, done.stdout) == (5, "10.0.0.1\n")
    srun_args = (tmp_path / "words").read_text()
    assert ("--container-image=img" in srun_args) is (runtime == "pyxis")
    assert "container-1" not in srun_args  # a shared disk is no place for the sockets of two nodes' Ray
    assert (tmp_path / "artifacts/other-nodes.log").read_text() == "joined\n"
    other = Path("/proc") / (tmp_path / "pid").read_text().strip() / "cmdline"
    for _ in range(100):
        if not other.exists() or not other.read_bytes():
            return
        time.sleep(0.02)
    raise AssertionError("the step of the other nodes is still there")


def test_docker_cannot_start_them(tmp_path: Path) -> None:
    done = _docker(tmp_path, "docker", "run", "img", "true")
    assert (done.returncode, "docker cannot start the job's other nodes" in done.stderr) == (125, True)
