"""What a host lacks for a row, and which other host could run it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ci_tasks.config import HostSpec
from ci_tasks.planning.placement import HostFacts, missing_resources, other_hosts, python_problem, requires_python
from ci_tasks.workflow.model import Row

ROW = Row("l", "j", None, "r", None, "", 4, "image", {}, "self-hosted", None)
CPU = replace(ROW, gpus=0, image=None)
LOCAL = HostSpec("local")
SIM = HostSpec("sim", runtime="none", gpus=8, simulate=True)
CLUSTER = HostSpec("cluster", kind="slurm", address="login.example.com", gpus=2)
NO_LOCK = "a lock script in the checkout that knows CI_TASKS_GPU_LOCK_DIR: simulated GPUs would touch the real locks"


@pytest.mark.parametrize(
    ("row", "host", "facts", "missing"),
    [
        (ROW, LOCAL, HostFacts(gpus=8), []),
        (ROW, LOCAL, HostFacts(gpus=4), []),
        (ROW, LOCAL, HostFacts(gpus=3), ["4 GPUs (found 3)"]),
        (ROW, LOCAL, HostFacts(gpu_problem="no nvidia-smi on PATH"), ["4 GPUs (found 0: no nvidia-smi on PATH)"]),
        (ROW, LOCAL, HostFacts(gpus=8, container_problem="docker (not on PATH)"), ["docker (not on PATH)"]),
        (ROW, LOCAL, HostFacts(container_problem="docker"), ["4 GPUs (found 0)", "docker"]),
        (CPU, LOCAL, HostFacts(python_problem="Python >=3.10"), ["Python >=3.10"]),
        (CPU, CLUSTER, HostFacts(scheduler_problem="no partition x"), ["Slurm (no partition x)"]),
        (ROW, CLUSTER, HostFacts(scheduler_problem="sinfo: no answer"), ["Slurm (sinfo: no answer)"]),
        (ROW, CLUSTER, HostFacts(gpus=2), ["4 GPUs on one node (found 2)"]),
        # A row that names no GPUs and no image needs neither, whatever is broken.
        (CPU, LOCAL, HostFacts(gpu_problem="driver", container_problem="docker"), []),
        (ROW, SIM, HostFacts(gpus=8), []),
        (ROW, SIM, HostFacts(gpus=8, simulates=False), [NO_LOCK]),
        # Without GPUs there is no lock to take.
        (CPU, SIM, HostFacts(gpus=8, simulates=False), []),
        (replace(ROW, gpus=16), SIM, HostFacts(gpus=8), ["16 GPUs (found 8)"]),
    ],
)
def test_what_a_host_lacks(row: Row, host: HostSpec, facts: HostFacts, missing: list[str]) -> None:
    assert missing_resources(row, host, facts) == missing


H100 = HostSpec("h100", kind="ssh", address="h100.example.com", gpus=8)
BIG = HostSpec("big", kind="ssh", address="big.example.com")
HOSTS = {host.name: host for host in (LOCAL, SIM, H100, BIG, CLUSTER)}
_H100, _BIG = "h100 (ssh h100.example.com, 8 GPUs)", "big (ssh big.example.com, GPUs unknown)"
_SIM, _CLUSTER = "sim (8 simulated GPUs)", "cluster (slurm login.example.com, 2 GPUs a node)"


@pytest.mark.parametrize(
    ("gpus", "here", "simulates", "others"),
    [
        (4, "local", True, [_SIM, _H100, _BIG]),
        (4, "local", False, [_H100, _BIG]),
        (4, "h100", True, [_SIM, _BIG]),
        (16, "local", True, [_BIG]),
        (0, "local", True, [_SIM, _H100, _BIG, _CLUSTER]),
    ],
)
def test_other_hosts_that_could_run_it(gpus: int, here: str, simulates: bool, others: list[str]) -> None:
    assert other_hosts(replace(ROW, gpus=gpus), HOSTS, here, simulates) == others


# The Python that the checkout requires


@pytest.mark.parametrize(
    ("files", "requirement"),
    [
        ({"pyproject.toml": '[project]\nname = "x"\nrequires-python = ">=3.10,<4"  # as CI\n'}, ">=3.10,<4"),
        ({"setup.cfg": "[options]\npython_requires = >=3.9\n"}, ">=3.9"),
        ({"setup.py": "setup(\n    name='x',\n    python_requires='>=3.8',\n)\n"}, ">=3.8"),
        ({"pyproject.toml": "[build-system]\n", "setup.py": "setup(python_requires=MINIMUM)"}, ""),
        ({"pyproject.toml": "# requires-python = '>=2'\n"}, ""),
        ({}, ""),
    ],
)
def test_where_a_checkout_says_which_python_it_needs(files: dict[str, str], requirement: str) -> None:
    assert requires_python(files.get) == requirement


@pytest.mark.parametrize(
    ("requirement", "version", "fits"),
    [
        (">=3.10", "3.9.2", False),
        (">=3.10", "3.10.0", True),
        (">=3.8,!=3.9.*", "3.9.7", False),
        (">=3.13", "3.14.0rc1", True),
        ("MINIMUM", "3.9.2", True),  # nobody can tell, so it is no reason to leave the host
        (">=3.10", "", True),
    ],
)
def test_a_python_that_the_checkout_excludes_is_named(requirement: str, version: str, fits: bool) -> None:
    problem = python_problem(requirement, version)
    assert (problem == "") == fits
    assert fits or problem == f"Python {requirement}, as the checkout requires (found {version})"
