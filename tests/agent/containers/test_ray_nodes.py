"""The other nodes of a row over several: one more step with the words of CI's own run, which ends with the row."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ci_tasks.agent.containers import adapter
from ci_tasks.agent.containers.docker_argv import parse_run, render
from ci_tasks.agent.containers.ray_nodes import joining_run

ROOT = Path(adapter.__file__).parents[3]

SRUN = """\
#!/bin/sh
if [ "$1" = --relative=1 ]; then
  printf '%s\\n' "$@" > {root}/words; echo "0: joined"
  printenv RAY_AUTH_MODE RAY_AUTH_TOKEN > {root}/token; echo $$ > {root}/pid; exec sleep 60
fi
while [ "${{1#--}}" != "$1" ]; do shift; done
exec "$@"
"""


def test_they_join_with_cis_own_words() -> None:
    argv = render(joining_run(parse_run(["run", "-i", "-v", "/a:/b", "--entrypoint", "x", "img", "bash", "-c", "y"])))
    assert argv[:-1] == ["run", "-v", "/a:/b", "--entrypoint", "bash", "img", "-c"]
    assert "head=$MASTER_ADDR:6379" in argv[-1] and 'ray start --address="$head"' in argv[-1]


def _docker(root: Path, runtime: str, *args: str) -> subprocess.CompletedProcess[str]:
    (root / "plan.json").write_text(json.dumps({"container": {"runtime": runtime}}))
    srun = root / "srun"
    srun.write_text(SRUN.format(root=shlex.quote(str(root))))
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
    """The head waits for them, and ends. All have one token of Ray's."""
    top = shlex.quote(str(tmp_path))
    joined = f"until [ -s {top}/pid ] && grep -q joined {top}/err; do sleep 0.05; done"
    words = f"{joined}; printenv RAY_AUTH_MODE RAY_AUTH_TOKEN MASTER_ADDR; exit 5"
    done = _docker(tmp_path, runtime, "run", "img", "bash", "-c", words)
    mode, token, head = done.stdout.split()
    assert (done.returncode, mode, len(token), head) == (5, "token", 64, "10.0.0.1")
    assert (tmp_path / "token").read_text().split() == [mode, token]
    srun_args = (tmp_path / "words").read_text()
    assert ("--container-image=img" in srun_args) is (runtime == "pyxis")
    assert "container-1" not in srun_args  # a shared disk is no place for the sockets of two nodes' Ray
    assert (tmp_path / "err").read_text().splitlines() == [
        "ci-tasks: b join Ray here; their lines begin with their names",
        "b: joined",
    ]
    other = Path("/proc") / (tmp_path / "pid").read_text().strip() / "cmdline"
    for _ in range(100):
        if not other.exists() or not other.read_bytes():
            return
        time.sleep(0.02)
    raise AssertionError("the step of the other nodes is still there")


@pytest.mark.parametrize(("head", "said"), [("127.0.0.1", "no program ray on PATH"), ("no.such.invalid", "")])
def test_a_node_that_cannot_join_says_so_at_once(tmp_path: Path, head: str, said: str) -> None:
    if not said:
        (tmp_path / "ray").write_text("#!/bin/sh\n")
        (tmp_path / "ray").chmod(0o755)
    argv = ["bash", *joining_run(parse_run(["run", "img", "x"])).command]
    env, out = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MASTER_ADDR": head}, subprocess.PIPE
    joining = subprocess.Popen(argv, env=env, stdout=out, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        assert f"this node cannot join Ray at {head}:6379: {said}" in (joining.stdout or sys.stdin).readline()
    finally:
        os.killpg(joining.pid, signal.SIGKILL)
        joining.communicate()
