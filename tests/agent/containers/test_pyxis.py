"""CI's `docker run` as the words of one srun under pyxis: what is mapped, what is lost, and that no secret shows."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.containers.docker_argv import DockerArgvError, parse_run
from ci_tasks.agent.containers.pyxis import image_name, rootless_command
from ci_tasks.agent.containers.rootless import RootlessCommand

STEP = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", "--cpu-bind=none", "--mpi=none"]
DIGEST = "sha256:" + "0a" * 32
# The run of a slime job, but for its length.
CI = ["run", "--rm", "--gpus", "all", "--ipc=host", "--shm-size=32g", "--ulimit", "memlock=-1", "--network=host"]
CI += ["--privileged", "-v", "/data:/root/data:ro", "-w", "/work", "-e", "HF_TOKEN", "slimerl/slime:latest"]
CI += ["bash", "-c", "python t.py; exit $?"]


def made(*args: str, variables: dict[str, str] | None = None, **environ: str) -> RootlessCommand:
    return rootless_command(parse_run(args), variables or {}, environ, "/run/tmp/container-1")


def deviations(*args: str) -> list[str]:
    return [deviation.what for deviation in made(*args).deviations]


def test_a_run_of_ci_is_one_step_on_the_node_of_its_script() -> None:
    command = made(
        *CI, variables={"HF_TOKEN": "s3cret", "CI_TASKS_RUN_DIR": "/r"}, SLURM_JOB_ID="7", SLURMD_NODENAME="n3"
    )
    assert list(command.argv) == [
        *STEP,
        "--nodelist=n3",
        "--container-image=slimerl/slime:latest",
        "--no-container-mount-home",
        "--container-remap-root",
        "--container-writable",
        "--container-entrypoint",
        "--container-workdir=/work",
        "--container-mounts=/data:/root/data:ro,/run/tmp/container-1/ray:/tmp/ray",
        "--container-env=NVIDIA_VISIBLE_DEVICES,HF_TOKEN,CI_TASKS_RUN_DIR",
        *["bash", "-c", "python t.py; exit $?"],
    ]
    assert command.environment["HF_TOKEN"] == "s3cret"
    assert "s3cret" not in " ".join(command.argv) + repr(command)


def test_every_loss_of_that_run_has_a_name() -> None:
    """--network=host and --ipc=host are what pyxis does anyway; beside --ipc=host docker ignores the size too."""
    first = ["runtime", "processes", "pull", "container flags"]
    assert deviations(*CI) == [*first, "environment", "/tmp/ray", "gpus", "entrypoint"]


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("ubuntu", "ubuntu"),
        ("slimerl/slime:v1", "slimerl/slime:v1"),
        ("nvcr.io/nvidia/pytorch:24.01-py3", "nvcr.io#nvidia/pytorch:24.01-py3"),
        ("localhost/a", "localhost#a"),
        ("registry:5000/a/b:1", "registry:5000#a/b:1"),
        (f"slimerl/slime@{DIGEST}", f"slimerl/slime:{DIGEST}"),
        (f"nvcr.io/nvidia/pytorch:24.01@{DIGEST}", f"nvcr.io#nvidia/pytorch:{DIGEST}"),
        # A file on the shared disk, so that not every row unpacks the image anew.
        ("/data/slime.sqsh", "/data/slime.sqsh"),
    ],
)
def test_an_image_is_named_as_enroot_reads_it(image: str, name: str) -> None:
    assert image_name(image) == name


MAPPED: list[tuple[list[str], str]] = [
    (["--read-only"], "--container-readonly"),
    (["--user", "0:0"], "--container-remap-root"),
    (["--user", "1000"], "--no-container-remap-root"),
    (["--mount", "type=bind,src=/a,dst=/b,readonly"], "--container-mounts=/a:/b:ro,/run/tmp/container-1/ray:/tmp/ray"),
    (["-v", "/a:/b:rw"], "--container-mounts=/a:/b,/run/tmp/container-1/ray:/tmp/ray"),
    (["--tmpfs", "/x:size=1g"], "--container-mounts=tmpfs:/x,/run/tmp/container-1/ray:/tmp/ray"),
]


@pytest.mark.parametrize(("flags", "word"), MAPPED, ids=[" ".join(flags) for flags, _ in MAPPED])
def test_a_flag_that_pyxis_has_words_for(flags: list[str], word: str) -> None:
    assert word in made("run", *flags, "img", "ls").argv


LOST: list[tuple[list[str], str, str]] = [
    ([], "network", "docker's own network"),
    ([], "processes", "its own"),
    ([], "ipc", "its own"),
    (["--network", "x"], "network", "--network x"),
    (["--shm-size=1g"], "shm-size", "--shm-size 1g"),
    (
        ["--ulimit", "a=1", "--ulimit", "b=2", "--privileged"],
        "container flags",
        "--ulimit a=1 --ulimit b=2 --privileged",
    ),
    (["--user", "1000"], "user", "--user 1000"),
    (["--pull", "never"], "pull", "never"),
    (["-v", "cache:/c"], "mount /c", "docker's volume cache"),
    (["--mount", "type=volume,src=c,dst=/c"], "mount /c", "docker's volume c"),
    (["--memory", "1g", "--hostname", "h"], "container flags", "--memory 1g --hostname h"),
]


@pytest.mark.parametrize(("flags", "what", "ci"), LOST, ids=[f"{' '.join(flags)} {what}" for flags, what, _ in LOST])
def test_a_flag_that_pyxis_cannot_do_is_a_deviation(flags: list[str], what: str, ci: str) -> None:
    changes = made("run", *flags, "img", "ls").deviations
    assert [change.ci for change in changes if change.what == what] == [ci]
    assert all(change.here and change.why for change in changes)


REFUSED = [
    (["-d", "img", "ls"], "--detach needs a daemon"),
    (["--volumes-from", "x", "img", "ls"], "--volumes-from needs docker's other containers"),
    (["img"], "has no command"),
    (["-v", "/a,b:/c", "img", "ls"], "'/a,b' has a comma or a colon"),
]


@pytest.mark.parametrize(("args", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_needs_docker_is_refused(args: list[str], message: str) -> None:
    with pytest.raises(DockerArgvError, match=message):
        made("run", *args)


def test_srun_keeps_what_it_needs_and_nothing_of_the_shell() -> None:
    kept = {"PATH": "/bin", "HOME": "/home/me", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "2,3", "https_proxy": "p"}
    command = made("run", "img", "ls", variables={"A": "1"}, **kept, LEAK="x", PYTHONPATH="x", TMPDIR="/scratch")
    assert command.environment == {**kept, "A": "1", "NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"PATH": "/inner"}, ["env", "PATH=/inner", "ls"]),
        ({"LD_LIBRARY_PATH": "/x y"}, ["env", "LD_LIBRARY_PATH=/x y", "ls"]),
        ({"SLURM_NTASKS": "9"}, ["env", "SLURM_NTASKS=9", "ls"]),
        # the same value does no harm; a proxy may hold a password
        ({"PATH": "/bin"}, ["ls"]),
        ({"HTTPS_PROXY": "http://me:pw@p"}, ["ls"]),
        ({"XDG_TOKEN": "s3cret"}, ["ls"]),
    ],
)
def test_variables_that_would_turn_sruns_own_head_are_set_by_the_command(
    variables: dict[str, str], expected: Any
) -> None:
    command = made("run", "img", "ls", variables=variables, PATH="/bin")
    after = command.argv[[word.startswith("--container-env") for word in command.argv].index(True) + 1 :]
    assert list(after) == expected
    assert command.environment["PATH"] == "/bin"
