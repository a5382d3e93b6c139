"""What a row over several nodes asks of Slurm, and what its host cannot give."""

from __future__ import annotations

import subprocess

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.errors import UsageError
from ci_tasks.planning.sbatch import node_lines

CLUSTER = HostSpec("c", kind="slurm", address="login", gres="gpu:h100", runtime="pyxis", gpus=8)


@pytest.mark.parametrize(
    ("nodes", "gpus", "host", "options"),
    [
        (1, 4, CLUSTER, ("--nodes=1", "--ntasks=1", "--gres=gpu:h100:4")),
        (1, 0, CLUSTER, ("--nodes=1", "--ntasks=1")),
        (1, 4, HostSpec("c", kind="slurm", address="l"), ("--nodes=1", "--ntasks=1", "--gres=gpu:4")),
        (1, 8, HostSpec("box", kind="ssh", address="b", gpus=8), ("--nodes=1", "--ntasks=1", "--gres=gpu:8")),
        # slime counts GPUs by node, and so does --gres
        (4, 8, CLUSTER, ("--nodes=4", "--ntasks-per-node=1", "--gres=gpu:h100:8")),
    ],
)
def test_what_sbatch_is_asked_for(nodes: int, gpus: int, host: HostSpec, options: tuple[str, ...]) -> None:
    assert node_lines(nodes, gpus, host).options == options


def test_one_node_is_as_ci_and_several_are_a_deviation() -> None:
    one, two = node_lines(1, 8, CLUSTER), node_lines(2, 8, CLUSTER)
    assert (one.prologue, one.passed, one.deviations) == ("", (), ())
    assert [(deviation.what, deviation.here) for deviation in two.deviations] == [("nodes", "2 nodes with 8 GPUs each")]


@pytest.mark.parametrize(("environment", "head"), [({}, "10.0.0.1"), ({"MASTER_ADDR": "10.9.9.9"}, "10.9.9.9")])
def test_the_prologue_names_the_nodes_as_slime_reads_them(environment: dict[str, str], head: str) -> None:
    lines = node_lines(2, 8, CLUSTER)
    programs = """
        scontrol() { [ "$*" = "show hostnames n[3-4]" ] && printf 'n3\\nn4\\n'; }
        hostname() { [ "$*" = -I ] && echo "10.0.0.1 192.168.0.1 "; }
    """
    shown = "".join(f'printf "%s;" "${name}"; ' for name in lines.passed)
    text = programs + lines.prologue + shown
    env = {"SLURM_JOB_NODELIST": "n[3-4]", "PATH": "/usr/bin:/bin", **environment}
    assert subprocess.run(["bash", "-euc", text], env=env, capture_output=True, text=True).stdout == f"n3\nn4;{head};"


@pytest.mark.parametrize(
    ("nodes", "gpus", "host", "message"),
    [
        (0, 8, CLUSTER, "at least one"),
        (2, 8, HostSpec("box", kind="ssh", address="b"), "host box is one machine"),
        (1, 16, CLUSTER, "16 GPUs on one node, and those of host c have 8"),
        (2, 8, HostSpec("c", kind="slurm", address="l"), "docker of host c cannot start the other nodes"),
    ],
)
def test_what_a_host_cannot_give(nodes: int, gpus: int, host: HostSpec, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        node_lines(nodes, gpus, host)
