"""CI's `docker run` as one srun, apptainer or inner command: what is mapped, what is lost, and
that no secret shows."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.containers import runtimes
from ci_tasks.agent.containers.docker_argv import DockerArgvError, parse_run
from ci_tasks.agent.containers.rules import ContainerRules
from ci_tasks.agent.records import Deviation

DIGEST = "sha256:" + "0a" * 32
# The run of a slime job, but for its length.
CI = ["run", "--rm", "--gpus", "all", "--ipc=host", "--shm-size=32g", "--ulimit", "memlock=-1", "--network=host"]
CI += ["--privileged", "-v", "/data:/root/data:ro", "-w", "/work", "-e", "HF_TOKEN", "slimerl/slime:latest"]
CI += ["bash", "-c", "python t.py; exit $?"]


def whats(deviations: list[Deviation]) -> list[str]:
    assert all(all(vars(deviation).values()) for deviation in deviations)
    return [deviation.what for deviation in deviations]


# -- pyxis and apptainer ---------------------------------------------------------------------------------------------


def made(runtime: str, *args: str, variables: dict[str, str] | None = None, **environ: str) -> Any:
    rules = ContainerRules(runtime)
    return runtimes.command(parse_run(args), rules, variables or {}, environ, "/run/tmp/container-1")


def test_a_run_of_ci_is_one_step_on_the_node_of_its_script() -> None:
    given = {"HF_TOKEN": "s3cret", "CI_TASKS_RUN_DIR": "/r"}
    argv, environment, deviations = made("pyxis", *CI, variables=given, SLURM_JOB_ID="7", SLURMD_NODENAME="n3")
    assert argv == [
        *["srun", "--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", "--cpu-bind=none", "--mpi=none"],
        *["--nodelist=n3", "--container-image=slimerl/slime:latest", "--no-container-mount-home"],
        *["--container-remap-root", "--container-writable", "--container-entrypoint", "--container-workdir=/work"],
        "--container-mounts=/data:/root/data:ro,/run/tmp/container-1/ray:/tmp/ray",
        "--container-env=NVIDIA_VISIBLE_DEVICES,HF_TOKEN,CI_TASKS_RUN_DIR",
        *["bash", "-c", "python t.py; exit $?"],
    ]
    assert environment["HF_TOKEN"] == "s3cret"
    # --network=host and --ipc=host are what pyxis does anyway.
    lost = ["runtime", "processes", "container flags", "gpus", "environment", "entrypoint", "/tmp"]
    assert whats(deviations) == lost


def test_a_run_of_ci_is_one_isolated_container_of_apptainer() -> None:
    argv, environment, deviations = made("apptainer", *CI, variables={"HF_TOKEN": "s3cret"})
    assert argv == [
        *["apptainer", "run", "--contain", "--cleanenv", "--no-home", "--no-umask", "--no-eval"],
        *["--pid", "--bind", "/dev/shm:/dev/shm", "--fakeroot", "--nv"],
        *["--writable-tmpfs", "--workdir", "/run/tmp/container-1", "--bind", "/data:/root/data:ro"],
        *["--pwd", "/work", "docker://slimerl/slime:latest", "bash", "-c", "python t.py; exit $?"],
    ]
    assert environment == {"APPTAINERENV_HF_TOKEN": "s3cret"}
    assert whats(deviations) == ["runtime", "user", "container flags", "gpus", "/tmp", "room to write"]


@pytest.mark.parametrize(
    ("image", "enroot", "apptainer"),
    [
        ("nvcr.io/nvidia/pytorch:24.01", "nvcr.io#nvidia/pytorch:24.01", "docker://nvcr.io/nvidia/pytorch:24.01"),
        ("registry:5000/a/b:1", "registry:5000#a/b:1", "docker://registry:5000/a/b:1"),
        (f"slimerl/slime:v1@{DIGEST}", f"slimerl/slime:{DIGEST}", f"docker://slimerl/slime@{DIGEST}"),
        ("/data/slime.sqsh", "/data/slime.sqsh", "/data/slime.sqsh"),
    ],
)
def test_an_image_is_named_as_the_runtime_reads_it(image: str, enroot: str, apptainer: str) -> None:
    assert f"--container-image={enroot}" in made("pyxis", "run", image, "ls")[0]
    assert made("apptainer", "run", image)[0][-1] == apptainer


MAPPED: list[tuple[str, list[str], str, bool]] = [
    ("pyxis", ["--read-only"], "--container-readonly", True),
    ("pyxis", ["--user", "1000"], "--no-container-remap-root", True),
    ("pyxis", ["--mount", "type=bind,src=/a,dst=/b,readonly"], "--container-mounts=/a:/b:ro,", True),
    ("pyxis", ["--tmpfs", "/x:size=1g"], "--container-mounts=tmpfs:/x,", True),
    ("pyxis", ["--entrypoint", "bash"], "--no-container-entrypoint", True),
    ("apptainer", ["--ipc=private"], "--ipc", True),
    ("apptainer", ["--user", "1000"], "--fakeroot", False),
    ("apptainer", ["--hostname", "h"], "--hostname h", True),
    ("apptainer", ["--tmpfs", "/x"], "--scratch /x", True),
    ("apptainer", ["-v", "/a:/b"], "--bind /a:/b", True),
    ("apptainer", ["--entrypoint", "bash"], "docker://img bash ls", True),
]


@pytest.mark.parametrize(("runtime", "flags", "words", "there"), MAPPED, ids=[str(case[1:3]) for case in MAPPED])
def test_a_flag_that_the_runtime_has_words_for(runtime: str, flags: list[str], words: str, there: bool) -> None:
    argv = " ".join(made(runtime, "run", *flags, "img", "ls")[0])
    assert (f" {words}" in argv + " ") is there


LOST: list[tuple[str, list[str], str, str | None]] = [
    ("pyxis", [], "network", "its own"),
    ("pyxis", [], "processes", "its own"),
    ("pyxis", ["--network", "host"], "network", None),
    ("pyxis", ["--ulimit", "a=1", "--ulimit", "b=2"], "container flags", "--ulimit a=1 --ulimit b=2"),
    ("pyxis", ["--user", "1000"], "user", "--user 1000"),
    ("pyxis", ["--mount", "type=volume,src=c,dst=/c"], "mount /c", "docker's volume"),
    ("apptainer", [], "workdir", "the image's"),
]


@pytest.mark.parametrize(("runtime", "flags", "what", "ci"), LOST, ids=[str(case[:3]) for case in LOST])
def test_what_is_lost_is_a_deviation_and_nothing_else_is(
    runtime: str, flags: list[str], what: str, ci: str | None
) -> None:
    deviations = made(runtime, "run", *flags, "img", "ls")[2]
    assert [item.ci for item in deviations if item.what == what] == ([] if ci is None else [ci])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-d", "img", "ls"], "--detach needs docker"),
        (["--env-file", "x", "img", "ls"], "--env-file needs docker"),
        (["img"], "has no command"),
        (["-v", "/a,b:/c", "img", "ls"], "a comma or a colon"),
    ],
)
def test_what_needs_docker_is_refused(args: list[str], message: str) -> None:
    with pytest.raises(DockerArgvError, match=message):
        made("pyxis", "run", *args)


def test_the_hosts_environment_stays_outside_but_for_what_the_runtime_needs() -> None:
    kept = {"PATH": "/bin", "HOME": "/home/me", "https_proxy": "p"}
    leaks = {"PYTHONPATH": "x", "APPTAINERENV_LEAK": "x", "SINGULARITYENV_LEAK": "x"}
    slurm = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "2,3"}
    environment = made("pyxis", "run", "img", "ls", variables={"A": "1"}, **kept, **slurm, **leaks)[1]
    assert environment == {**kept, **slurm, "A": "1", "NVIDIA_VISIBLE_DEVICES": "void"}
    environment = made("apptainer", "run", "img", "ls", variables={"PATH": "/in", "A": "$B"}, **kept, **leaks)[1]
    inside = {name: value for name, value in environment.items() if "ENV_" in name}
    assert inside == {"APPTAINERENV_PATH": "/in", "APPTAINERENV_A": "$B"} and environment["PATH"] == "/bin"
    environment = made("none", "run", "img", "ls", variables={"A": "1"}, **kept, **slurm, **leaks)[1]
    assert environment == {**kept, "A": "1"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"PATH": "/inner"}, ["env", "PATH=/inner", "ls"]),
        # the same value does no harm; a proxy may hold a password
        ({"PATH": "/bin"}, ["ls"]),
        ({"https_proxy": "http://me:pw@p"}, ["ls"]),
    ],
)
def test_variables_that_would_mislead_srun_are_set_by_the_command(variables: dict[str, str], expected: Any) -> None:
    own = {"PATH": "/bin", "https_proxy": "p"}
    argv, environment, _ = made("pyxis", "run", "img", "ls", variables=variables, **own)
    after = argv[[word.startswith("--container-env") for word in argv].index(True) + 1 :]
    assert (after, environment["PATH"]) == (expected, "/bin")


def test_a_plan_lists_the_deviations_of_its_container_as_far_as_its_command_tells() -> None:
    run = parse_run(["run", "--gpus", "all", "-v", "/no/such:/d", "img", "ls"])
    listed = {
        runtime: {item.what for item in runtimes.container_deviations(run, ContainerRules(runtime))}
        for runtime in ("docker", "podman", "pyxis", "apptainer", "none")
    }
    assert listed["docker"] == {"init"}
    assert {"runtime", "gpus"} <= listed["podman"] & listed["pyxis"] & listed["apptainer"]
    assert listed["none"] >= {"container flags"} and "container" not in listed["none"]
    assert runtimes.container_deviations(parse_run(["run", "-d", "img"]), ContainerRules("none")) == ()
    assert runtimes.container_deviations(None, ContainerRules()) == ()
