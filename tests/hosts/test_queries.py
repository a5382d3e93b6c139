"""Facts from text, and from programs on a PATH of the test's own that refuse any question but the expected one."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.agent import nvidia_smi
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.config import HostSpec
from ci_tasks.hosts import queries
from ci_tasks.planning.placement import HostFacts
from tests import fixtures as support
from tests.parts.processes import LocalQueryRunner


def test_questions_are_answered_by_name() -> None:
    answers = LocalQueryRunner().run_queries(
        {"yes": ["sh", "-c", "echo out; echo err >&2; exit 3"], "no": ["no-such-program"]}, 30
    )
    assert answers["yes"] == QueryAnswer(3, "out\n", "err\n")
    assert answers["no"].is_missing
    assert "no-such-program" in answers["no"].last_line


def test_a_query_loads_no_module_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m pip` and `python -c "import platform"` in a checkout are Python's own."""
    (tmp_path / "platform.py").write_text("print('executed')")
    monkeypatch.chdir(tmp_path)
    queries = {"c": [sys.executable, "-c", "import platform"], "m": [sys.executable, "-m", "platform"]}
    answers = LocalQueryRunner().run_queries(queries, 30)
    assert answers["c"] == QueryAnswer(0)
    assert "executed" not in answers["m"].out


def test_a_program_that_hangs_is_ended_with_its_children_and_spoils_no_other_answer(tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! > {shlex.quote(f'{tmp_path}/child')}; sleep 300"
    answers = LocalQueryRunner().run_queries({"hangs": ["sh", "-c", script], "answers": ["echo", "here"]}, 1)
    assert answers["answers"] == QueryAnswer(0, "here\n")
    assert answers["hangs"].timed_out and not answers["hangs"].is_missing
    assert "no answer from sh within 1 s" in answers["hangs"].err
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    support.until(lambda: not child.exists() or child.read_text().split()[2] == "Z", "the child has ended")


GPU = "{0}, GPU-{0}a9a5e0c-0000-1111-2222-333344445555, NVIDIA H200, 580.1, 4, 143771\n"


def facts(host: HostSpec, answer: QueryAnswer, *, gpus: bool) -> HostFacts:
    """Of a host that has this answer to the one question."""
    asked = queries.fact_queries(host, gpus=gpus, container=not gpus)
    return queries.parse_facts(host, dict.fromkeys(asked, answer), simulates=True)


@pytest.mark.parametrize(
    ("says", "code", "counted"),
    [
        ("".join(map(GPU.format, range(8))), 0, (8, "")),
        ("No devices found.\n", 0, (0, "No devices found.")),
        ("No devices were found\n", 6, (0, "No devices were found")),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n\n",
            9,
            (0, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        ),
        # A driver that dies half way has shown nothing reliable.
        (GPU.format(0) + "Unable to determine the device handle for GPU1: Unknown Error\n", 15, None),
        ("", 1, (0, "no output")),
        ("", 0, (0, "no output")),
    ],
)
def test_gpus_of_this_machine(says: str, code: int, counted: tuple[int, str] | None) -> None:
    asked = queries.fact_queries(HostSpec("local"), gpus=True, container=False)
    assert asked == {"gpus": nvidia_smi.QUERY_GPUS}
    found = facts(HostSpec("local"), QueryAnswer(code, says), gpus=True)
    expected = counted or (0, "Unable to determine the device handle for GPU1: Unknown Error")
    assert (found.gpus, found.gpu_problem) == expected


@pytest.mark.parametrize(
    ("text", "name", "most"),
    [
        ("gpu:h200:8\n", "gpu", 8),
        ("gpu:8\n(null)\n", "gpu", 8),
        ("gpu:h100:8(S:0-1),shard:64\ngpu:a100:4(IDX:0,1,2,3)\n", "gpu", 8),
        ("gpu:h100:2(S:0),gpu:a100:2(S:1)\n", "gpu", 4),
        ("gpu:h100:8\ngpu:a100:16\n", "gpu:h100", 8),
        ("gpu:h1000:8\n", "gpu:h100", 0),
        ("(null)\n", "gpu", 0),
    ],
)
def test_the_gpus_of_a_clusters_widest_node(text: str, name: str, most: int) -> None:
    assert queries.parse_gres(text, name) == most


CLUSTER = HostSpec("c", kind="slurm", address="login", partition="p", gres="gpu:h100", runtime="docker")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (QueryAnswer(0, "gpu:h100:8\n"), HostFacts(gpus=8)),
        (QueryAnswer(0, "gpu:a100:8\n"), HostFacts(gpu_problem="partition p has no gpu:h100")),
        (QueryAnswer(1, "", "sinfo: error: x\n"), HostFacts(gpu_problem="sinfo: error: x")),
        (QueryAnswer(None, "", "sinfo: No such file or directory"), HostFacts(gpu_problem="no sinfo on PATH")),
    ],
)
def test_of_cluster_slurm_is_asked_and_its_login_node_needs_no_docker(answer: QueryAnswer, expected: HostFacts) -> None:
    asked = queries.fact_queries(CLUSTER, gpus=True, container=True)
    assert asked == {"gpus": ["sinfo", "--noheader", "--format=%G", "--partition=p"]}
    assert queries.parse_facts(CLUSTER, {"gpus": answer}, simulates=True) == expected


@pytest.mark.parametrize(
    ("answer", "minutes"),
    [
        (QueryAnswer(0, "main*|infinite\n"), None),
        (QueryAnswer(0, "short|30:00\nmain*|1:00:00\n"), 60),
        (QueryAnswer(0, "h100|2-12:00:30\nh100|2-12:00:30\n"), 3600.5),
        (QueryAnswer(0, "a|1:00:00\nb|2:00:00\n"), None),  # nobody says which of them it will be
        (QueryAnswer(1, "", "sinfo: error"), None),
        (QueryAnswer(0, "main*|n/a\n"), None),
    ],
)
def test_the_longest_that_a_job_may_run(answer: QueryAnswer, minutes: float | None) -> None:
    assert queries.parse_time_limit(answer) == minutes
    assert queries.parse_time_limit(QueryAnswer(0, "a|1:00:00\nb*|2:00:00\n"), "b") == 120


@pytest.mark.parametrize(
    ("answer", "partition", "problem"),
    [
        (QueryAnswer(0, "main*|infinite\nshort|30:00\n"), "mian", "no partition mian; partitions: main, short"),
        (QueryAnswer(0, "main*|infinite\nshort|30:00\n"), "main,short", ""),
        (QueryAnswer(0, "main*|infinite\n"), None, ""),
        (QueryAnswer(0, ""), "main", "no partition main; partitions: none"),
        (QueryAnswer(1, "", "slurm_load_partitions: Unable to contact slurm controller\n"), None,
         "sinfo: slurm_load_partitions: Unable to contact slurm controller"),
        (QueryAnswer(None, "", "sinfo: No such file or directory"), "main", "no sinfo on PATH"),
    ],
)  # fmt: skip
def test_why_slurm_would_take_no_job(answer: QueryAnswer, partition: str | None, problem: str) -> None:
    assert queries.partition_problem(answer, partition) == problem


def test_nothing_is_asked_that_is_not_wanted() -> None:
    assert queries.fact_queries(HostSpec("local"), gpus=False, container=False) == {}
    assert queries.parse_facts(HostSpec("local"), {}, simulates=True) == HostFacts()


NO_DAEMON = "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is the docker daemon running?"
VERSION = "version --format {{.Server.Version}}"
RUNTIMES = [
    ("none", "", "", 0, ""),
    ("docker", f"docker {VERSION}", "27.1.1\n", 0, ""),
    ("podman", f"podman {VERSION}", "5.0\n", 0, ""),
    ("docker", f"docker {VERSION}", f"\n{NO_DAEMON}\n", 1, f"docker ({NO_DAEMON})"),
    ("docker", f"docker {VERSION}", "", 1, "docker (no output)"),
    # one without a daemon is there if its program says so
    ("apptainer", "apptainer --version", "apptainer version 1.3.4", 0, ""),
    ("apptainer", "apptainer --version", "FATAL: no config", 255, "apptainer (FATAL: no config)"),
    ("pyxis", "srun --help", "  --container-image=[USER@][REGISTRY#]IMAGE", 0, ""),
    ("pyxis", "srun --help", "Usage: srun [OPTIONS(0)...]", 0, "pyxis (srun has no --container-image)"),
    # nothing of that name on PATH
    *((name, name, "", None, f"{name} (not on PATH)") for name in ("docker", "podman", "apptainer")),
    ("pyxis", "srun", "", None, "pyxis (no srun on PATH)"),
]


@pytest.mark.parametrize(("runtime", "command", "says", "code", "problem"), RUNTIMES)
def test_why_a_runtime_starts_nothing(runtime: str, command: str, says: str, code: int | None, problem: str) -> None:
    host = HostSpec("local", runtime=runtime)
    asked = queries.fact_queries(host, gpus=False, container=True)
    assert [" ".join(argv).startswith(command) for argv in asked.values()] == [True] * (runtime != "none")
    answer = QueryAnswer(code, says, "" if code is not None else f"{command}: No such file or directory")
    assert facts(host, answer, gpus=False).container_problem == problem


Find = Callable[[str, Mapping[str, str]], "str | None"]


@pytest.fixture
def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Find:
    """Finds one among interpreters that print what the mapping says, and returns its place; None for our own."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYENV_ROOT", raising=False)

    def find(version_spec: str, interpreters: Mapping[str, str]) -> str | None:
        for place, prints in interpreters.items():
            path = tmp_path / place
            path.parent.mkdir(parents=True, exist_ok=True)
            quoted = shlex.quote(str(path))
            path.write_text(f'#!/bin/sh\n[ "$1 $2" = "-I -c" ] || exit 99\nprintf "%s " {prints}\necho {quoted}\n')
            if prints == "broken":
                path.write_text(f"#!/bin/sh\necho 3.6.1 {quoted}\nexit 1\n")
            path.chmod(0o755)
        found = queries.find_python(version_spec, LocalQueryRunner())
        return None if found == queries.OWN else found[0].removeprefix(f"{tmp_path}/")

    return find


PYENV, UV = ".pyenv/versions/{}/bin/python", ".local/share/uv/python/cpython-{}-linux-x86_64-gnu/bin/python3.6"


@pytest.mark.parametrize(
    ("version_spec", "interpreters", "found"),
    [
        *((spec, {"bin/python3.6": "3.6.15"}, "bin/python3.6") for spec in ("3.6", "3.6.15", "3.6.x")),
        ("3.6", {"bin/python3": "3.6.1"}, "bin/python3"),
        ("3.6", {"bin/python3.6": "broken", PYENV.format("3.6.15"): "3.6.15"}, PYENV.format("3.6.15")),
        # 3.6.15 is newer than 3.6.9, though not as text.
        ("3.6", {PYENV.format(each): each for each in ("3.6.9", "3.6.15", "3.6.2")}, PYENV.format("3.6.15")),
        ("3.6.9", {PYENV.format(each): each for each in ("3.6.9", "3.6.15")}, PYENV.format("3.6.9")),
        ("3.6", {UV.format("3.6.15"): "3.6.15"}, UV.format("3.6.15")),
        ("3.6", {"bin/python3.6": "3.7.1"}, None),
        ("3.6", {"bin/python3.6": ""}, None),
        *((spec, {}, None) for spec in ("", "3.6", "2.x", "pypy3.9")),
        *((spec, {"bin/python3": "9.9.9"}, None) for spec in ("3.x", "3", platform.python_version())),
    ],
)
def test_the_newest_python_of_the_version_is_found_else_it_is_our_own(
    find: Find, version_spec: str, interpreters: Mapping[str, str], found: str | None
) -> None:
    assert find(version_spec, interpreters) == found


def test_locked_gpus_are_known_before_rows_are_placed() -> None:
    """GPU 3 is locked; a GPU without a number is left out, and GPU 5 has the inode of a lock on another disk."""
    inodes = {3: 8, "4": 9, 5: 10}
    files = [{"gpu": gpu, "file": [0, 27, inode]} for gpu, inode in inodes.items()]
    held = "".join(f"1: FLOCK ADVISORY WRITE 77 00:{at} 0 EOF\n" for at in ("1b:8", "1b:9", "1c:10"))
    answers = {queries.LOCKS_QUERY_NAME: QueryAnswer(0, json.dumps({"files": files, "locks": held}))}
    host: Any = SimpleNamespace(run_queries=lambda queries, timeout: {name: answers[name] for name in queries})
    assert queries.locked_gpus(host, HostSpec("h")) == {3}
    assert queries.locked_gpus(host, HostSpec("h", simulate=True)) == frozenset()
