"""The step of a level: bash that is whole, with the guide's order and its exact commands."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from ci_tasks.features.verl.levels.levels import LevelRequest, trainings
from ci_tasks.features.verl.levels.script import command, render

FEATURE = {"overrides": ("a.b=c",), "proofs": ("x",)}
REQUESTS = [
    *(LevelRequest(level, **(FEATURE if level == 4 else {})) for level in range(6)),  # type: ignore[arg-type]
    LevelRequest(0, model_path="/m/a 'b'", no_reward_model=True, dummy_config="/c.json", env={"X": "it's"}),
]


@pytest.mark.parametrize("level_request", REQUESTS, ids=lambda it: f"level {it.level} {it.model_path}")
@pytest.mark.parametrize("simulated", [False, True], ids=["real", "simulated"])
def test_the_step_is_bash(level_request: LevelRequest, simulated: bool) -> None:
    text = render(level_request, trainings(level_request), simulated=simulated)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_preflight_comes_before_the_trainings_in_the_guides_order() -> None:
    text = render(LevelRequest(1), trainings(LevelRequest(1)))
    order = ["bridge-checks", "devices", "room", "import-driver", "import-worker", "data", "reward-model", "model"]
    order = [f"mark {name} " for name in order] + [
        "train 'level 0'",
        "train 'level 1: save'",
        "train 'level 1: resume'",
    ]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)


def test_of_two_trainings_that_have_to_end_alike_the_checkpoints_are_hashed() -> None:
    lines = render(LevelRequest(1), trainings(LevelRequest(1))).splitlines()
    hashed = ["hashes 'level 1: resume' 2", "hashes 'level 1: uninterrupted' 2"]
    assert [line for line in lines if line.startswith("hashes '")] == hashed


@pytest.mark.parametrize("contained", [True, False])
def test_ray_is_stopped_in_a_container_of_its_own_only(contained: bool) -> None:
    text = render(LevelRequest(0), trainings(LevelRequest(0)), contained=contained)
    assert ("ray stop --force" in text) is contained
    assert ("mark ray skipped" in text) is not contained


def test_a_command_is_the_maintained_wrapper_with_its_environment() -> None:
    *_, resume, _ = trainings(LevelRequest(1, model_id="org/it's", no_reward_model=True))
    argv = shlex.split(command(resume))
    assert "MODEL_ID=org/it's" in argv
    assert {"RESUME_MODE=auto", "TOTAL_TRAIN_STEPS=2", "LORA_RANK=4"} <= set(argv)
    at = argv.index("bash")
    assert argv[at + 1] == "tests/special_e2e/run_ppo_trainer_megatron.sh"
    assert argv[at + 2 :] == [
        "++ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH=${PYTHONPATH}",
        "reward.reward_model.enable=False",
    ]


@pytest.mark.parametrize(
    ("alive", "line"),
    [("2", "ray: pass: 2 nodes at 10.0.0.1:6379"), ("1", "ray: blocked: 2 nodes were asked for, and Ray has: 1")],
)
def test_several_nodes_are_one_ray_before_anything_uses_it(alive: str, line: str) -> None:
    """With a Ray that starts, and says how many nodes joined it."""
    text = render(LevelRequest(0, nodes=2), trainings(LevelRequest(0, nodes=2)))
    begin, end = text.index("# One Ray over all nodes"), text.index("# Bridge imports it")
    stubs = f"""set -uo pipefail
mark() {{ printf '%s: %s: %s\\n' "$1" "$2" "$3"; }}
stop() {{ mark "$1" "$2" "$3"; exit 0; }}
last() {{ tail -n 1; }}
ray() {{ [ "$1" != start ] || [[ "$*" == *--head*10.0.0.1* ]]; }}
py() {{ cat > /dev/null; echo {alive}; }}
MASTER_ADDR=10.0.0.1
"""
    done = subprocess.run(["bash"], input=stubs + text[begin:end], text=True, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == line
    assert "# One Ray over all nodes" not in render(LevelRequest(0), trainings(LevelRequest(0)))


CHECKS = [  # pytest's or uv's exit code, what it prints → the mark, or the end of the run
    (0, "3 passed in 1s", "pass: 3 passed in 1s: uv run python -m pytest -q TEST extra::test"),
    (1, "FAILED a.py::t - AssertionError\n1 failed", "fail: FAILED a.py::t - AssertionError: uv run"),
    (1, "FAILED a.py::t - ModuleNotFoundError: No module named 'foo'\n1 failed",
     "blocked: exit code 1: FAILED a.py::t"),
    (2, "E   ModuleNotFoundError: No module named 'foo'\nERROR a.py\n1 error", "blocked: exit code 2: E   Module"),
    (2, "E   ModuleNotFoundError: No module named 'megatron.bridge.x'\nERROR a.py\n1 error",
     "fail: E   ModuleNotFound"),
    (4, "ERROR: file or directory not found: x.py", "blocked: exit code 4: ERROR: file or directory not found"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "outcome"), CHECKS)
def test_bridge_checks_that_fail_are_told_from_those_that_cannot_run(
    tmp_path: Path, code: int, text: str, outcome: str
) -> None:
    test = "tests/unit_tests/models/test_model_provider_mixin.py"
    lines = checks_of_bridge(tmp_path, code, text, tests=(test,))
    assert lines[0].startswith(f"ci-tasks-verl: bridge-checks: {outcome.replace('TEST', test)}")
    # Only a test that failed ends the run.
    assert (lines[1:] == []) is outcome.startswith("fail")


def checks_of_bridge(
    root: Path,
    code: int,
    text: str,
    tests: tuple[str, ...],
    named: tuple[str, ...] = ("extra::test",),
    runner: str = "uv",
    simulated: bool = False,
) -> list[str]:
    """The lines of the checks' part of a level, with a uv or Python that ends so, and of what comes after it."""
    bridge, uv = root / "Megatron-Bridge", root / "bin" / runner
    for file in (uv, *(bridge / test for test in tests)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    bridge.mkdir(exist_ok=True)
    uv.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    uv.chmod(0o755)
    level_request = LevelRequest(0, bridge_tests=named)
    script = render(level_request, trainings(level_request), simulated=simulated)
    script = script[: script.index('if [ -n "${CUDA_VISIBLE_DEVICES:-}')] + "mark after pass x\n"
    env = {"PATH": f"{uv.parent}:{os.environ['PATH']}", "GITHUB_WORKSPACE": str(root), "HOME": str(root)}
    env["CI_TASKS_RUN_DIR"] = str(root)
    done = subprocess.run(["bash", "-c", script], env=env, text=True, capture_output=True)
    return [line for line in done.stdout.splitlines() if line.startswith("ci-tasks-verl: ")]
