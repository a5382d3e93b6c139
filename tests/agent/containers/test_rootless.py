"""The `docker` of a run directory on a host of pyxis or apptainer, through strict stand-ins that run the inner command.

A stand-in that meets an option it does not know ends with 64, as it would end in an error there.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.containers import adapter
from ci_tasks.agent.containers.slurm_variables import slurm_variables
from ci_tasks.agent.records import DockerInvocation, DockerInvocations
from ci_tasks.agent.run_directory import read_record

ROOT = Path(adapter.__file__).parents[3]
ADAPTER = """\
#!/bin/sh
exec {python} -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); from ci_tasks.agent.containers.adapter import main
sys.exit(main(sys.argv[2:], sys.argv[1]))' {root} {run_dir} "$@"
"""
SRUN = """\
#!/bin/sh
for word do case $word in *s3cret*) echo "a secret in the words" >&2; exit 65;; esac; done
while [ $# -gt 0 ]; do case $1 in
  --overlap|--nodes=1|--ntasks=1|--export=ALL|--cpu-bind=none|--mpi=none|--nodelist=n3) ;;
  --container-image=img:1|--no-container-mount-home|--container-remap-root|--container-writable) ;;
  --container-entrypoint|--no-container-entrypoint|--container-workdir=*|--container-mounts=*|--container-env=*) ;;
  -*) echo "srun: unrecognized option '$1'" >&2; exit 64;;
  *) break;;
esac; shift; done
exec "$@"
"""
APPTAINER = """\
#!/bin/bash
for word do case $word in *s3cret*) echo "a secret in the words" >&2; exit 65;; esac; done
case $1 in run|exec) shift;; *) exit 64;; esac
while [ $# -gt 0 ]; do case $1 in
  --contain|--cleanenv|--no-home|--no-umask|--no-eval|--pid|--ipc|--fakeroot|--nv|--writable-tmpfs) shift;;
  --bind|--workdir|--pwd) shift 2;;
  docker://img:1) shift; break;;
  *) echo "Error: unknown flag: $1" >&2; exit 64;;
esac; done
inner=()
while IFS= read -r -d '' entry; do
  case $entry in APPTAINERENV_*) inner+=("${entry#APPTAINERENV_}");; esac
done < <(env -0)
exec env -i PATH="$PATH" "${inner[@]}" "$@"
"""


class Host:
    def __init__(self, root: Path, runtime: str) -> None:
        self.root, self.run_dir, self.real = root, root / "run dir's", root / "real bin"
        for directory in (self.run_dir / "bin", self.real):
            directory.mkdir(parents=True)
        values = {"python": sys.executable, "root": str(ROOT), "run_dir": str(self.run_dir)}
        text = ADAPTER.format(**{key: shlex.quote(word) for key, word in values.items()})
        for path, body in (
            (self.run_dir / "bin" / "docker", text),
            (self.real / "srun", SRUN),
            (self.real / "apptainer", APPTAINER),
        ):
            path.write_text(body)
            path.chmod(0o755)
        self.runtime = runtime
        self.rules()

    def rules(self, **container: Any) -> None:
        plan = {"container": {"runtime": self.runtime, "image": {"img": "img:1"}, **container}}
        (self.run_dir / "plan.json").write_text(json.dumps(plan))

    def docker(self, *args: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.run_dir / "bin"), str(self.real), "/usr/bin", "/bin"])
        return subprocess.run(
            [str(self.run_dir / "bin" / "docker"), *args],
            env={"PATH": path, "HOME": str(self.root), **environ},
            cwd=self.root,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    def journal(self) -> Sequence[DockerInvocation]:
        record = read_record(DockerInvocations, str(self.run_dir / "docker.json"))
        return record.calls if record is not None else ()


@pytest.fixture(params=["pyxis", "apptainer"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(tmp_path, request.param)


def test_the_inner_command_runs_with_its_exit_code_and_what_differs_is_on_record(host: Host) -> None:
    (host.root / "file").write_text("FILED=f\n")
    args = [
        "run",
        "--rm",
        "--pull=always",
        "--gpus",
        "all",
        "--env-file",
        str(host.root / "file"),
        "-e",
        "HF_TOKEN=s3cret",
    ]
    done = host.docker(*args, "img", "sh", "-c", "echo $HF_TOKEN $FILED $OURS; cat; exit 3", stdin="rest of the script")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == "s3cret f\n"  # stdin is closed, as docker's is without -i
    (entry,) = host.journal()
    program = {"pyxis": "srun", "apptainer": "apptainer"}[host.runtime]
    assert (entry.ci[0], entry.here[0], entry.name, entry.runtime) == ("run", program, None, host.runtime)
    assert {"image", "env HF_TOKEN", "runtime", "gpus", "network"} <= {deviation.what for deviation in entry.deviations}
    assert "s3cret" not in (host.run_dir / "docker.json").read_text()
    assert (host.run_dir / "tmp/container-1/ray").is_dir()


def test_the_rules_of_the_host_hold(host: Host) -> None:
    data = host.root / "data"
    data.mkdir()
    host.rules(mounts={"/mnt/x": str(data)}, volumes=[str(host.real)], env={"OURS": "o"})
    assert host.docker("run", "-v", "/mnt/x:/d", "img", "sh", "-c", "echo $OURS").stdout == "o\n"
    here = " ".join(host.journal()[0].here)
    assert f"{data}:/d" in here
    assert f"{host.real}:{host.real}" in here


def test_the_gpus_of_a_slurm_job_reach_the_container(host: Host) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n3", "CUDA_VISIBLE_DEVICES": "2,3"}
    script = 'echo "$CUDA_VISIBLE_DEVICES"'
    assert host.docker("run", "--gpus", "all", "img", "sh", "-c", script, **job).stdout == "2,3\n"


SLURM = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4,5", "SLURM_NODEID": "0"}
NODES = {"SLURM_JOB_HOSTNAMES": "a\nb", "MASTER_ADDR": "a", "SLURM_JOB_NUM_NODES": "2"}


@pytest.mark.parametrize(
    ("environ", "by_daemon", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, False, {}),  # forgotten in a shell
        (SLURM, False, {"CUDA_VISIBLE_DEVICES": "0,1"}),
        # docker's containers are outside of the job's cgroup, where GPUs have the node's numbers
        (SLURM, True, {"CUDA_VISIBLE_DEVICES": "4,5"}),
        ({"SLURM_JOB_ID": "7"}, True, {}),
        ({**SLURM, **NODES}, False, {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_NODEID": "0", **NODES}),
    ],
)
def test_what_a_container_learns_of_its_job(environ: dict[str, str], by_daemon: bool, expected: dict[str, str]) -> None:
    assert slurm_variables(environ, by_daemon) == expected
