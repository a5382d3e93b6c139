"""CI's docker commands in the words of each runtime, and every deviation by its name."""

from __future__ import annotations

from typing import Any

import pytest

from ci_tasks.agent.codec import decode
from ci_tasks.agent.docker_argv import ContainerRules, DockerArgvError, parse_run, render
from ci_tasks.agent.docker_rewrite import (
    client_environment,
    command,
    container_deviations,
    qualified_image,
    rewrite,
    rewrite_other,
)
from ci_tasks.agent.records import Deviation


def _rewritten(argv: list[str], number: int = 1, **rules: Any) -> tuple[list[str], list[Deviation]]:
    run, deviations = rewrite(parse_run(["run", *argv]), decode(ContainerRules, rules, where="rules"), number)
    return render(run)[1:], deviations


def _whats(deviations: list[Deviation]) -> list[str]:
    assert all(all(vars(deviation).values()) for deviation in deviations)
    return [deviation.what for deviation in deviations]


MOUNTS = {"/mnt/x": "/data/x", "/mnt/x/deep": "/fast", "/mnt/sp ace": '/d\'s "q"', "/c,d": "/e,f"}
SOURCES = [
    ("/mnt/x", "/data/x"),
    ("/mnt/x/./a/../b", "/data/x/b"),
    ("/mnt/x/deep/er", "/fast/er"),  # the longest rule wins
    ("/mnt/x2", None),  # a rule ends where a name ends
    ("/mnt/x/../y", None),
    ("/mnt/sp ace/it's", "/d's \"q\"/it's"),
    ("/c,d/g", "/e,f/g"),
]


@pytest.mark.parametrize(("source", "here"), SOURCES, ids=[repr(source) for source, _ in SOURCES])
@pytest.mark.parametrize("spelling", ["-v", "--mount"])
def test_a_mount_source_moves_by_the_longest_rule_that_holds_it(spelling: str, source: str, here: str | None) -> None:
    mount = f'type=bind,"src={source}",dst=/dst,readonly'.replace('"q"', '""q""')
    given = ["-v", f"{source}:/dst:ro"] if spelling == "-v" else ["--mount", mount]
    got, deviations = _rewritten(["--init", *given, "img"], mounts=MOUNTS)
    assert got == ["--init", *(["-v", f"{here}:/dst:ro"] if here else given), "img"]
    named = Deviation(f"mount {source}", source, here or "", "hosts.yaml mounts")
    assert deviations == ([named] if here else [])


BRIDGE = ("network", "--network host", "--network bridge")
# CI's options, the host's rules → the options here, and what is named: (what, CI's, here)
CHANGED: list[tuple[list[str], dict[str, Any], list[str], list[tuple[str, ...]]]] = [
    (["--pull=always"], {"pull": "never"}, ["--pull", "never"], [("pull", "always", "never")]),
    ([], {"pull": "always"}, ["--pull", "always"], [("pull", "missing (docker's default)", "always")]),
    (["--pull=always"], {"pull": "always"}, ["--pull=always"], []),
    (["--pull=always"], {}, ["--pull=always"], []),
    (["--network", "host"], {"network": "bridge"}, ["--network", "bridge"], [BRIDGE]),
    (["--net=name=host"], {"network": "bridge"}, ["--network", "bridge"], [BRIDGE]),
    (["--network", "none"], {"network": "bridge"}, ["--network", "none"], []),
    (["--network", "host"], {}, ["--network", "host"], []),
    (["-v", "/a:/b/"], {"volumes": ["/b"]}, ["-v", "/a:/b/"], []),  # CI fills its place already
]


@pytest.mark.parametrize(("argv", "rules", "expected", "named"), CHANGED)
def test_what_the_host_has_rules_for_is_changed_and_named(
    argv: list[str], rules: dict[str, Any], expected: list[str], named: list[tuple[str, ...]]
) -> None:
    got, deviations = _rewritten(["--init", *argv, "img", "--network=host"], **rules)
    assert got == ["--init", *expected, "img", "--network=host"]
    assert [(deviation.what, deviation.ci, deviation.here) for deviation in deviations] == named


def test_each_harmless_addition_is_one_deviation_with_a_reason() -> None:
    rules: dict[str, Any] = {
        "labels": {"a": "1", "b": "x y"},
        "env": {"A": "1", "B": "2"},
        "volumes": ["/run dir", "/o"],
    }
    got, deviations = _rewritten(["--rm", "-d", "img", "ls"], name="n", **rules)
    assert got == [
        *["-d", "--name", "n", "--label", "a=1", "--label", "b=x y", "--init", "-e", "A", "-e", "B"],
        *["-v", "/run dir:/run dir", "-v", "/o:/o", "img", "ls"],
    ]
    assert _whats(deviations) == ["name", "rm", "labels", "init", "env", "volumes"]


def test_no_secret_stands_in_the_argv_or_in_a_deviation() -> None:
    argv = ["--init", "-e", "HF_TOKEN=hf_s3cret", "--env=WANDB_API_KEY=k3y", "-itePASSWORD=pw0", "-e", "N=1", "img"]
    got, deviations = _rewritten(argv, env={"EXTRA_TOKEN": "t0k"})
    assert got == [
        *["--init", "-e", "HF_TOKEN", "-e", "WANDB_API_KEY", "-i", "-t", "-e", "PASSWORD"],
        *["-e", "N=1", "-e", "EXTRA_TOKEN", "img"],
    ]
    for secret in ("hf_s3cret", "k3y", "pw0", "t0k"):
        assert secret not in repr((got, deviations))
        assert secret not in repr(ContainerRules(env={"EXTRA_TOKEN": "t0k"}))
    values = client_environment(parse_run(["run", *argv]), ContainerRules(env={"EXTRA_TOKEN": "t0k"}))
    assert values == {"HF_TOKEN": "hf_s3cret", "WANDB_API_KEY": "k3y", "PASSWORD": "pw0", "EXTRA_TOKEN": "t0k"}


def test_a_secret_under_any_name_stays_out_of_the_argv_too() -> None:
    rules = ContainerRules(secrets=("correct-horse",))
    run = parse_run(["run", "-e", "URL=https://me:correct-horse@host", "-e", "N=1", "img"])
    here, deviations = rewrite(run, rules)
    assert "URL" in render(here) and "correct-horse" not in repr((here, deviations, rules))
    assert client_environment(run, rules) == {"URL": "https://me:correct-horse@host"}


# -- other commands --------------------------------------------------------------------------------------------------

BOX = {"box": "ci-tasks-2"}
OTHERS = [
    ("exec -t box bash -c true", "exec -t ci-tasks-2 bash -c true"),
    ("exec -e A=box box echo box", "exec -e A=box ci-tasks-2 echo box"),
    ("cp box:/a/box.txt out", "cp ci-tasks-2:/a/box.txt out"),
    ("container rm -f box", "stop -t 0 ci-tasks-2"),
    ("rm -f box other", "rm -f ci-tasks-2 other"),
    ("build -t boxes .", "build -t boxes ."),
]


@pytest.mark.parametrize(("ci", "here"), OTHERS)
def test_a_command_finds_the_container_under_its_name_here(ci: str, here: str) -> None:
    assert rewrite_other(ci.split(), BOX)[0] == here.split()


@pytest.mark.parametrize("ci", ["create image", "container create image", "compose up", "stack deploy x"])
def test_a_command_that_starts_what_could_not_be_found_never_reaches_docker(ci: str) -> None:
    with pytest.raises(DockerArgvError, match="could not find the containers that it starts"):
        rewrite_other(ci.split(), BOX)


# -- podman ----------------------------------------------------------------------------------------------------------

PODMAN: list[tuple[list[str], list[str], list[str]]] = [
    (["--ipc=host", "--shm-size=32g"], ["--ipc=host"], ["shm-size"]),
    (["--memory-swap=0"], [], ["memory-swap"]),
    (["--gpus", "2"], ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"], ["gpus"]),
    (['--gpus="device=3,5"'], ["--device", "nvidia.com/gpu=3", "--device", "nvidia.com/gpu=5"], ["gpus"]),
]


@pytest.mark.parametrize(("argv", "expected", "lost"), PODMAN, ids=[" ".join(argv) for argv, _, _ in PODMAN])
def test_what_podman_refuses_is_put_in_its_words_and_it_gets_dockers_defaults(
    argv: list[str], expected: list[str], lost: list[str]
) -> None:
    run, deviations = rewrite(parse_run(["run", "--privileged", *argv, "img"]), ContainerRules("podman"))
    defaults = ["--init", "--http-proxy=false", "--pids-limit", "-1"]
    assert render(run) == ["run", "--privileged", *expected, *defaults, "img"]
    assert _whats(deviations) == ["init", "runtime", *lost]


def test_podman_keeps_a_limit_of_cis_and_gets_an_init_only_if_it_has_one() -> None:
    ci = parse_run(["run", "--pids-limit=9", "img"])
    run, deviations = rewrite(ci, ContainerRules("podman"), has_init=False)
    assert render(run) == ["run", "--pids-limit=9", "--http-proxy=false", "img"]
    assert _whats(deviations) == ["runtime", "capabilities"]
    with_init = parse_run(["run", "--init", "--pids-limit=9", "img"])
    assert render(rewrite(with_init, ContainerRules("podman"))[0])[1] == "--init"
    run, deviations = rewrite(with_init, ContainerRules("podman"), has_init=False)
    assert ("--init" in render(run), _whats(deviations)) == (False, ["runtime", "init", "capabilities"])


def test_a_name_without_registry_is_docker_hubs() -> None:
    assert qualified_image("slimerl/slime@sha256:0") == "docker.io/slimerl/slime@sha256:0"
    assert qualified_image("debian:12") == "docker.io/library/debian:12"
    for image in ("docker.io/slimerl/slime", "registry:5000/slime", "localhost/slime"):
        assert qualified_image(image) == image


DIGEST = "sha256:" + "0a" * 32
# The run of a slime job, but for its length.
CI = ["run", "--rm", "--gpus", "all", "--ipc=host", "--shm-size=32g", "--ulimit", "memlock=-1", "--network=host"]
CI += ["--privileged", "-v", "/data:/root/data:ro", "-w", "/work", "-e", "HF_TOKEN", "slimerl/slime:latest"]
CI += ["bash", "-c", "python t.py; exit $?"]


# -- pyxis and apptainer ---------------------------------------------------------------------------------------------


def made(runtime: str, *args: str, variables: dict[str, str] | None = None, **environ: str) -> Any:
    rules = ContainerRules(runtime)
    return command(parse_run(args), rules, variables or {}, environ, "/run/tmp/container-1")


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
    assert _whats(deviations) == lost


def test_a_run_of_ci_is_one_isolated_container_of_apptainer() -> None:
    argv, environment, deviations = made("apptainer", *CI, variables={"HF_TOKEN": "s3cret"})
    assert argv == [
        *["apptainer", "run", "--contain", "--cleanenv", "--no-home", "--no-umask", "--no-eval"],
        *["--pid", "--bind", "/dev/shm:/dev/shm", "--fakeroot", "--nv"],
        *["--writable-tmpfs", "--workdir", "/run/tmp/container-1", "--bind", "/data:/root/data:ro"],
        *["--pwd", "/work", "docker://slimerl/slime:latest", "bash", "-c", "python t.py; exit $?"],
    ]
    assert environment == {"APPTAINERENV_HF_TOKEN": "s3cret"}
    assert _whats(deviations) == ["runtime", "user", "container flags", "gpus", "/tmp", "room to write"]


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
    ("pyxis", ["--network", "host"], "network", None),
    ("pyxis", ["--ulimit", "a=1", "--ulimit", "b=2"], "container flags", "--ulimit a=1 --ulimit b=2"),
    ("pyxis", ["--user", "1000"], "user", "--user 1000"),
    ("pyxis", ["--mount", "type=volume,src=c,dst=/c"], "mount /c", "docker's volume"),
    ("apptainer", [], "workdir", "the image's"),
    ("none", ["-v", "/src:/no/such"], "mount /no/such", "/src at /no/such"),
    ("none", ["-v", "/src:/usr"], "mount /usr", None),
    ("none", ["-v", "/no/such"], "mount /no/such", None),  # docker's own volume
]


@pytest.mark.parametrize(("runtime", "flags", "what", "ci"), LOST, ids=[str(case[:3]) for case in LOST])
def test_only_what_is_lost_is_a_deviation(runtime: str, flags: list[str], what: str, ci: str | None) -> None:
    deviations = made(runtime, "run", *flags, "img", "ls")[2]
    assert [item.ci for item in deviations if item.what == what] == ([] if ci is None else [ci])


@pytest.mark.parametrize(
    ("args", "message"),
    [
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
        runtime: {item.what for item in container_deviations(run, ContainerRules(runtime))}
        for runtime in ("docker", "podman", "pyxis", "apptainer", "none")
    }
    assert listed["docker"] == {"init"}
    assert {"runtime", "gpus"} <= listed["podman"] & listed["pyxis"] & listed["apptainer"]
    assert listed["none"] >= {"container flags"} and "container" not in listed["none"]
    assert container_deviations(parse_run(["run", "-d", "img"]), ContainerRules("none")) == ()
    assert container_deviations(None, ContainerRules()) == ()
