"""The adapter as bash calls it, with programs that print what they get; and the other nodes of a job."""

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

from ci_tasks.agent import docker_adapter
from ci_tasks.agent.docker_argv import ContainerRules
from ci_tasks.agent.docker_rewrite import CATATONIT
from ci_tasks.agent.evidence import write_files
from ci_tasks.agent.records import DockerInvocation, DockerInvocations, Plan, ProbeOverlay, ProbeRules, read_events
from ci_tasks.agent.run_directory import RunDir, read_record, write_record

ROOT = Path(docker_adapter.__file__).parents[2]
HOSTILE = 'it\'s a "dir" with $(all)'

ADAPTER = """\
#!/bin/sh
exec {python} -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); from ci_tasks.agent.docker_adapter import main
sys.exit(main(sys.argv[2:], sys.argv[1]))' {root} {run_dir} "$@"
"""
REAL = """\
#!/bin/sh
case "$1 $2" in
"image inspect") [ -e "$FAKE/image" ] && exec cat "$FAKE/image"; echo "No such image" >&2; exit 1 ;;
"pull --quiet") ;;
"pull "*) echo "PYTHONPATH=/pulled" > "$FAKE/image"; echo "Pulling from x"; exit ;;
esac
printf '%s\\0' "$@" > "$FAKE/got.$$"
env -0 > "$FAKE/env"
ls "$FAKE" | grep -q expected || exit 98
cmp -s "$FAKE/got.$$" "$FAKE/expected" || [ -e "$FAKE/expected.any" ] || { echo "unexpected words: $*" >&2; exit 99; }
echo "real ${0##*/} ran"
exit 7
"""
REAL_EXIT = 7


class Host:
    """A host with a run directory, and with a stand-in for its docker and podman."""

    runtime = "docker"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run_dir = root / "run dir's"
        self.fake = root / "fake"
        self.real = root / "real bin"
        for directory in (self.run_dir / "bin", self.fake, self.real):
            directory.mkdir(parents=True)
        values = {"python": sys.executable, "root": str(ROOT), "run_dir": str(self.run_dir)}
        quoted = {key: shlex.quote(word) for key, word in values.items()}
        self._program(self.run_dir / "bin" / "docker", ADAPTER.format(**quoted))
        for name in ("docker", "podman"):
            self._program(self.real / name, REAL)
        (self.fake / "image").write_text("PATH=/bin\n")
        self.environ = {
            "PATH": os.pathsep.join([str(self.run_dir / "bin"), str(self.real), "/usr/bin", "/bin"]),
            "FAKE": str(self.fake),
            "HOME": str(root),
        }

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def rules(self, **container: Any) -> None:
        (self.run_dir / "plan.json").write_text(json.dumps({"container": container}))

    def expect(self, *args: str) -> None:
        (self.fake / "expected").write_bytes(b"".join(word.encode() + b"\0" for word in args))

    def docker(self, *args: str | bytes, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        argv, env = [str(self.run_dir / "bin" / "docker"), *args], {**self.environ, **environ}
        return subprocess.run(argv, env=env, cwd=self.root, input=stdin, capture_output=True, text=True, timeout=20)

    def journal(self) -> Sequence[DockerInvocation]:
        record = read_record(DockerInvocations, str(self.run_dir / "docker.json"))
        return record.calls if record is not None else ()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / HOSTILE)


def _blocked(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("ci-tasks: blocked: ")
    for part in parts:
        assert part in done.stderr


def test_the_real_docker_gets_the_rewritten_words_and_its_exit_code_is_ours(host: Host) -> None:
    data = host.root / "data"
    data.mkdir()
    host.rules(name="ci-7", mounts={"/mnt/x": str(host.root)}, pull="never", image={"img": "img@sha256:1"})
    volume = f"{data}:/d"
    here = ["run", "-v", volume, "--pull", "never", "--name", "ci-7", "--init", "img@sha256:1", "sh", "-c", "a\nb"]
    host.expect(*here)
    ci = ["run", "--rm", "--pull=always", "-v", "/mnt/x/data:/d", "img", "sh", "-c", "a\nb"]
    done = host.docker(*ci)
    assert (done.returncode, done.stdout, done.stderr) == (REAL_EXIT, "real docker ran\n", "")
    (entry,) = host.journal()
    assert (list(entry.ci), list(entry.here), entry.name, entry.runtime) == (ci, here, "ci-7", "docker")
    assert [d.what for d in entry.deviations] == ["mount /mnt/x/data", "pull", "image", "name", "rm", "init"]


def test_podman_runs_where_the_host_says_so(host: Host) -> None:
    host.rules(runtime="podman")
    init = ["--init"] if os.path.exists(CATATONIT) else []
    host.expect("run", "--device", "nvidia.com/gpu=all", *init, "--http-proxy=false", "--pids-limit", "-1", "img")
    done = host.docker("container", "run", "--gpus", "all", "img")
    assert (done.returncode, done.stdout) == (REAL_EXIT, "real podman ran\n")
    assert host.journal()[0].runtime == "podman"


def test_secrets_reach_the_container_through_the_environment_only(host: Host) -> None:
    host.rules(env={"OUR_TOKEN": "t0p"})
    host.expect("run", "-e", "HF_TOKEN", "--init", "-e", "OUR_TOKEN", "img")
    assert host.docker("run", "-e", "HF_TOKEN=s3cret", "img").returncode == REAL_EXIT
    assert {"OUR_TOKEN=t0p", "HF_TOKEN=s3cret"} < set((host.fake / "env").read_text().split("\0"))
    text = (host.run_dir / "docker.json").read_text()
    assert "t0p" not in text and "s3cret" not in text


def test_concurrent_runs_of_one_script_are_all_recorded_under_different_names(host: Host) -> None:
    host.rules(name="ci")
    (host.fake / "expected.any").touch()
    argv = [str(host.run_dir / "bin" / "docker"), "run", "img"]
    running = [subprocess.Popen([*argv, str(n)], env=host.environ, stdout=subprocess.DEVNULL) for n in range(5)]
    assert [process.wait(20) for process in running] == [REAL_EXIT] * 5
    assert sorted(entry.ci[-1] for entry in host.journal()) == ["0", "1", "2", "3", "4"]
    assert [entry.name for entry in host.journal()] == ["ci", "ci-2", "ci-3", "ci-4", "ci-5"]


def test_what_cannot_be_put_on_record_does_not_start(host: Host) -> None:
    """A container that nobody knows of would be left behind. A directory in the record's place stands for a full
    disk."""
    host.rules()
    (host.run_dir / "docker.json").mkdir()
    _blocked(host.docker("run", "img"), "it is not a regular file")
    assert not (host.fake / "env").exists()


def test_it_never_finds_itself_even_through_a_link(host: Host, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(host.run_dir / "bin")
    host.rules()
    host.expect("run", "--init", "img")
    path = os.pathsep.join([str(link), str(host.run_dir / "bin"), str(host.real), "/usr/bin", "/bin"])
    assert host.docker("run", "img", PATH=path).stdout == "real docker ran\n"
    _blocked(host.docker("run", "img", PATH=str(link)), "no docker on PATH", "runtime: none")


def test_a_missing_mount_source_blocks_and_names_what_to_add(host: Host) -> None:
    host.rules()
    _blocked(host.docker("run", "--mount", "type=bind,src=/no/such,dst=/d", "img"), "'/no/such'", "hosts.yaml")
    assert host.journal() == ()


def test_a_command_reaches_the_last_container_of_its_name(host: Host) -> None:
    host.rules(name="ci")
    (host.fake / "expected.any").touch()
    for argv in (["run", "--name=box", "img"], ["run", "--name=box", "img"], ["run", "img"], ["exec", "box", "ls"]):
        assert host.docker(*argv).returncode == REAL_EXIT
    _blocked(host.docker("create", "img"), "docker create: ci-tasks could not find the containers")
    assert host.journal()[-1].here == ("exec", "ci-2", "ls")


# -- the probe -------------------------------------------------------------------------------------------------------

START = "/ci-tasks-probe/start"
PROBES = [
    # what the image has, what CI gives → the path inside
    ("PATH=/bin\n", [], START),
    ("PYTHONPATH=/of/the/image\n", [], f"{START}:/of/the/image"),
    ("PYTHONPATH=/of/the/image\n", ["-e", "PYTHONPATH=/of/the/job"], f"{START}:/of/the/job"),
]


def _with_probe(host: Host) -> RunDir:
    run = RunDir(str(host.run_dir))
    write_files(run)
    plan = Plan(container=ContainerRules(), probe=ProbeRules(overlays=(ProbeOverlay("/w/sglang", ("sglang",), "/w"),)))
    write_record(run.plan, plan)
    return run


@pytest.mark.parametrize(("image", "given", "path"), PROBES)
def test_the_probe_is_mounted_and_comes_first(host: Host, image: str, given: list[str], path: str) -> None:
    run = _with_probe(host)
    (host.fake / "image").write_text(image)
    volumes = [f"{run.evidence}:{run.evidence}", "/w:/w", f"{run.probe}:/ci-tasks-probe:ro"]
    options = [word for volume in volumes for word in ("-v", volume)]
    host.expect("run", *given, "--init", "-e", f"PYTHONPATH={path}", *options, "img")
    assert host.docker("run", *given, "img").returncode == REAL_EXIT
    assert host.journal()[0].deviations[-1].here == f"PYTHONPATH={path}"


def test_an_image_that_the_run_would_pull_is_pulled_first_for_the_probe_must_know_it(host: Host) -> None:
    _with_probe(host)
    (host.fake / "expected.any").touch()
    (host.fake / "image").unlink()
    done = host.docker("run", "img")
    assert "Pulling from x" in done.stderr, "docker run prints it there too"
    assert list(host.journal()[0].here[:5]) == ["run", "--pull", "never", "--init", "-e"]
    assert f"PYTHONPATH={START}:/pulled" in host.journal()[0].here
    (host.fake / "image").unlink()
    host.docker("run", "--pull=never", "img")
    assert "probe" not in [deviation.what for deviation in host.journal()[1].deviations], "docker will refuse it"
    events = read_events((host.run_dir / "events.jsonl").read_text())
    assert [(event.event, event.image) for event in events[:2]] == [("pull", "img"), ("container", None)]


def test_a_plan_that_cannot_be_read_blocks(host: Host) -> None:
    _blocked(host.docker("run", "img"), "has no `container` rules")
    (host.run_dir / "plan.json").write_text('{"container": {"mounts": []}}')
    _blocked(host.docker("run", "img"), "plan.json: container.mounts: expected object, got list")


# -- runtime: none, for real -----------------------------------------------------------------------------------------


@pytest.fixture
def bare(host: Host) -> Host:
    host.rules(runtime="none", env={"OURS": "o"})
    return host


def test_without_containers_the_inner_command_runs_here_with_its_exit_code(bare: Host) -> None:
    ci = ["run", "--rm", "--gpus", "all", "-w", str(bare.fake), "-v", "/mnt/x:/no/where", "img"]
    ci += ["sh", "-c", "pwd; exit 3"]
    done = bare.docker(*ci)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{bare.fake}\n", "")
    (entry,) = bare.journal()
    assert (list(entry.ci), list(entry.here), entry.name) == (ci, ["sh", "-c", "pwd; exit 3"], None)
    assert [d.what for d in entry.deviations] == ["container", "mount /no/where", "container flags"]


NOT_WITHOUT = [
    (["run", "img"], "the default command of img is unknown without docker"),
    (["run", "-d", "img", "ls"], "--detach needs docker"),
    (["run", "-w", "/no/such dir", "img", "ls"], "working directory /no/such dir does not exist"),
    (["exec", "box", "ls"], "docker exec needs docker, and this host's runtime is none"),
]


@pytest.mark.parametrize(("args", "message"), NOT_WITHOUT, ids=[" ".join(args) for args, _ in NOT_WITHOUT])
def test_what_needs_a_container_is_blocked_without_one(bare: Host, args: list[str], message: str) -> None:
    _blocked(bare.docker(*args), message)
    assert bare.journal() == ()


@pytest.mark.parametrize("args", [["pull", "img"], ["image", "pull", "img"], ["login", "--password-stdin"], ["logout"]])
def test_pull_login_and_logout_do_nothing_and_say_so_in_one_line(bare: Host, args: list[str]) -> None:
    done = bare.docker(*args, stdin="pw")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
    assert "nothing to do, this host's runtime is none" in done.stderr
    assert "blocked" not in done.stderr  # the judge reads that word as a verdict
    (entry,) = bare.journal()
    assert (list(entry.ci), list(entry.here), entry.deviations[0].here) == (args, [], "nothing done")


def test_a_command_that_is_missing_or_no_program_gives_dockers_exit_codes(bare: Host) -> None:
    assert bare.docker("run", "img", "no-such-command").returncode == 127
    assert bare.docker("run", "img", str(bare.root)).returncode == 126


# -- pyxis and apptainer: stand-ins that run the inner command; test_rewrite.py has their words -----------------------

SRUN = """\
#!/bin/sh
for word do case $word in *s3cret*) echo "a secret in the words" >&2; exit 65;; esac; done
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
APPTAINER = """\
#!/bin/bash
for word do case $word in *s3cret*) echo "a secret in the words" >&2; exit 65;; esac; done
while [ "$1" != docker://img:1 ]; do shift; done
inner=()
while IFS= read -r -d '' entry; do
  case $entry in APPTAINERENV_*) inner+=("${entry#APPTAINERENV_}");; esac
done < <(env -0)
exec env -i PATH="$PATH" "${inner[@]}" "${@:2}"
"""


@pytest.fixture(params=["pyxis", "apptainer"])
def daemonless(request: pytest.FixtureRequest, host: Host) -> Host:
    host.runtime = request.param
    host.rules(runtime=host.runtime, image={"img": "img:1"})
    for name, text in (("srun", SRUN), ("apptainer", APPTAINER)):
        host._program(host.real / name, text)
    return host


def test_the_inner_command_runs_with_its_exit_code_and_what_differs_is_on_record(daemonless: Host) -> None:
    args = ["run", "--rm", "--pull=always", "--gpus", "all", "-e", "HF_TOKEN=s3cret", "img", "sh", "-c"]
    done = daemonless.docker(*args, "echo $HF_TOKEN $OURS; cat; exit 3", stdin="rest of the script")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == "s3cret\n"  # stdin is closed, as docker's is without -i
    (entry,) = daemonless.journal()
    program = {"pyxis": "srun", "apptainer": "apptainer"}[daemonless.runtime]
    assert (entry.ci[0], entry.here[0], entry.name, entry.runtime) == ("run", program, None, daemonless.runtime)
    assert {"image", "env HF_TOKEN", "runtime", "gpus", "network"} <= {deviation.what for deviation in entry.deviations}
    assert "s3cret" not in (daemonless.run_dir / "docker.json").read_text()
    assert (daemonless.run_dir / "tmp/container-1/ray").stat().st_mode == 0o41777, "as /tmp, whoever the job is there"


def test_the_rules_of_the_host_and_the_gpus_of_its_job_hold(daemonless: Host) -> None:
    real = str(daemonless.real)
    daemonless.rules(runtime=daemonless.runtime, env={"OURS": "o"}, image={"img": "img:1"}, mounts={"/mnt/x": real})
    job = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n3", "CUDA_VISIBLE_DEVICES": "2,3"}
    words = ["run", "-v", "/mnt/x:/d", "img", "sh", "-c", "echo $OURS $CUDA_VISIBLE_DEVICES"]
    assert daemonless.docker(*words, **job).stdout == "o 2,3\n"
    assert f"{real}:/d" in " ".join(daemonless.journal()[0].here)
    _blocked(daemonless.docker("run", "-v", "/no/where:/d", "img", "ls"), "mount source '/no/where'")


SLURM = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4,5", "SLURM_NODEID": "0"}
JOBS = [
    ({"CUDA_VISIBLE_DEVICES": "1"}, False, {}),  # forgotten in a shell
    # docker's containers are outside of the job's cgroup, where GPUs have the node's numbers
    (SLURM, True, {"CUDA_VISIBLE_DEVICES": "4,5"}),
    (SLURM, False, {"CUDA_VISIBLE_DEVICES": "0,1"}),
    ({"CI_TASKS_GPU_IDS": "2,3", "CUDA_VISIBLE_DEVICES": "1"}, True, {"CUDA_VISIBLE_DEVICES": "2,3"}),
]


@pytest.mark.parametrize(("environ", "by_daemon", "expected"), JOBS)
def test_what_a_container_learns_of_its_job(environ: dict[str, str], by_daemon: bool, expected: dict[str, str]) -> None:
    assert docker_adapter.gpu_variables(environ, by_daemon) == expected
