"""A label from the command to the table, on the sample, as a person would do it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.checkout.repositories import untouched
from tests.fixtures import LINKS, PIP
from tests.parts.nightly import drawn

CKPT = [*(f"tiny_ckpt[save-optimizer-gpu-load-optimizer-{place}]" for place in ("gpu", "cpu")), "tiny_ckpt[async-save]"]


@pytest.mark.smoke
def test_a_gpu_label_runs_its_rows_on_simulated_gpus_several_at_once(person: Any) -> None:
    person.edit(".github/workflows/pr-test.yml", LINKS, PIP)
    real_locks = sorted(Path("/dev/shm").glob("custom_gpu_lock_*"))
    with untouched(person.checkout):
        said = person.ci_tasks("remote", "--host", "sim", "ckpt", "--only", "gpu-load-optimizer,async")
    assert (said.code, said.err) == (0, "")
    assert "3 passed" in said.out.splitlines()[-1]
    records = person.records()
    assert [(record["row"], record["status"]) for record in records] == [(row, "passed") for row in CKPT]
    assert all(record["evidence"]["kind"] == "metrics" and len(record["gpu_ids"]) == 4 for record in records)
    assert _most_gpus_at_once(records) == 8, "two rows of four GPUs fit, three do not"
    assert sorted(Path("/dev/shm").glob("custom_gpu_lock_*")) == real_locks
    assert not person.processes()
    assert not list((person.home / "runs").glob("*/*/workspace")), "no checkout of a run is left"


def _most_gpus_at_once(records: list[dict[str, Any]]) -> int:
    spans = [
        (datetime.fromisoformat(record["started_at"]), datetime.fromisoformat(record["ended_at"]), record["gpus"])
        for record in records
    ]
    return max(int(sum(gpus for start, end, gpus in spans if start <= moment < end)) for moment, _, _ in spans)


@pytest.mark.smoke
@pytest.mark.timeout(600)  # two commands with install steps
def test_a_cpu_label_runs_in_a_venv_and_names_the_row_that_ran_nothing(person: Any, index: dict[str, str]) -> None:
    person.use_index(index)
    said = person.ci_tasks("run", "cpu-unittest", "--only", "rewards,batching", "--jobs", "2")
    assert said.code == 1
    found = {record["row"]: record for record in person.records()}
    assert {row: record["status"] for row, record in found.items()} == {"rewards": "passed", "batching": "vacuous"}
    assert (found["rewards"]["evidence"]["kind"], found["rewards"]["evidence"]["tests"]) == ("junit", 7)
    assert "defines tests, and none of them ran" in found["batching"]["reason"]
    assert "1 passed, 1 vacuous" in said.out.splitlines()[-1]
    _shared_by_another_label_then_cleaned(person)


def _shared_by_another_label_then_cleaned(person: Any) -> None:
    """A label with the same install steps takes what the first one has installed, and says so. `clean --all` leaves
    nothing of it."""
    again = person.ci_tasks("run", "agent-test", "--only", "transcript")
    assert again.code == 0
    assert "reusing packages of earlier runs with these steps: " in again.out
    deviations = {item["what"]: item["here"] for item in person.records()[0]["deviations"]}
    assert "packages, resolved 20" in deviations["packages"]
    assert not list(person.home.glob("runs/*/environments/*/venv")), "no venv outlives its command"
    assert "environment " in person.ci_tasks("clean", "--all").out
    assert not list(person.home.glob("environments/*/prefix"))


@pytest.mark.timeout(300)  # with install steps
def test_changed_runs_cpu_tests_here_as_their_labels_rows_and_resumes(person: Any, index: dict[str, str]) -> None:
    person.use_index(index)
    person.edit("tests/test_rewards.py", "NUM_GPUS = 0\n", "NUM_GPUS = 0  # edited\n")
    person.edit("tests/test_tiny_dense_grpo.py", "import os\n", "# edited\nimport os\n")
    begun = person.start("remote", "--host", "sim", "changed")
    while "install steps: running" not in begun.stdout.readline():
        pass
    begun.send_signal(signal.SIGINT)
    out, err = begun.communicate(timeout=60)
    assert (begun.returncode, "not started: tiny_dense_grpo of changed on sim" in out) == (130, True), out + err
    said = person.ci_tasks("remote", "--host", "sim", "changed", "--resume")
    assert said.code == 0, said.out + said.err
    assert len(list((person.home / "runs").iterdir())) == 2, "the first label went on, the second was new"
    assert said.out.splitlines()[-1] == "changed: 2 passed"
    files = (person.home / "runs").glob("*/*/record.json")
    records = {
        record["row"]: (record["label"], record["host"]) for record in (json.loads(file.read_text()) for file in files)
    }
    assert records == {"rewards": ("cpu-unittest", "local"), "tiny_dense_grpo": ("changed", "sim")}


def test_the_sample_is_used_where_there_is_no_checkout_and_says_so(person: Any, tmp_path: Path) -> None:
    person.checkout = tmp_path / "elsewhere"
    person.checkout.mkdir()
    said = person.ci_tasks("remote", "--host", "sim", "precision")
    assert said.code == 0, said.out + said.err
    assert said.out.startswith(
        "checkout: the embedded sample examples/tiny-slime (no checkout given and none found here"
    )
    assert person.records()[0]["checkout"]["sample"] is True


# -- `--test FILE::NAME`: which rows it means, and that they run that test alone ---------------------------------------


ONE = "tests/test_rewards.py::test_a_wrong_answer_earns_nothing"


@pytest.mark.timeout(300)
def test_only_rows_that_run_its_file_run_and_they_run_it_alone(person: Any, index: dict[str, str]) -> None:
    person.use_index(index)
    ran = person.ci_tasks("run", "cpu-unittest", "--test", ONE)
    assert [(row["row"], row["evidence"]["tests"]) for row in person.records()] == [("rewards", 1)], ran.out


# -- the sample's gallery of failures, run and read as a newcomer would: each row's cause, verdict and line ------------


HOSTS = """\
hosts:
  sim: {kind: local, runtime: none, gpus: 8, simulate: true, env: {TINY_STEP_SECONDS: "0.05", TINY_FLAKE: "1"}}
"""

# Failure → cause, verdict, what the line says.
GALLERY = {
    "oom": ("cuda_oom", "failed", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 25.60 GiB."),
    "nccl-timeout": ("nccl_error", "failed", "Watchdog caught collective operation timeout"),
    "engine": ("sglang_engine_crash", "failed", "ValueError: token_to_kv_pool memory leak detected!"),
    "kl": ("test_assertion", "failed", "AssertionError: the policy is not its reference at step 0"),
    "hang": ("timeout_hang", "failed", "Watchdog timeout (self.watchdog_timeout=0.4)"),
    "disk": ("disk_full", "blocked", "OSError: [Errno 28] No space left on device"),
    "import": ("import_error", "failed", "ModuleNotFoundError: No module named 'tiny_math_verify'"),
    "port": ("port_in_use", "blocked", "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', "),
    "hub": ("hf_download", "blocked", "Too Many Requests"),
    "flaky": ("test_assertion", "failed", "AssertionError: the engine answers with weights of version 0, not of 1"),
}


def test_failures_of_the_gallery_are_read_as_what_they_are(person: Any) -> None:
    person.write_hosts(HOSTS)
    names = drawn(sorted(GALLERY), 4)
    rows = ",".join(f"failure-{name}" for name in names)
    said = person.ci_tasks("remote", "--host", "sim", "gallery", "--only", rows)
    assert said.code == 1, said.err
    triages = {_failure(record["row"]): record["triage"] for record in person.records()}
    assert {name: (found["cause"], found["verdict"]) for name, found in triages.items()} == {
        name: GALLERY[name][:2] for name in names
    }
    logs = {_failure(row): log.split("\n") for row, log in person.logs().items()}
    wrong = {
        name: (found["line_no"], found["line"])
        for name, found in triages.items()
        if not (GALLERY[name][2] in found["line"] and GALLERY[name][2] in logs[name][found["line_no"] - 1])
    }
    assert not wrong, "neither the line that was shown nor the log at its number is the one that matters"
    signatures = {found["signature"] for found in triages.values()}
    assert len(signatures) == len(names), "no two failures are the same"
    assert not person.processes()


def _failure(row: str) -> str:
    """tiny_gallery[failure-oom] → oom"""
    return row.partition("[failure-")[2].rstrip("]")


# -- `runtime: none` on a host that is no pretence: a person already inside the image, whose Python stays as it is -----


def test_a_row_installs_into_a_venv_of_its_own_over_the_python_on_path_even_from_a_login_shell(
    person: Any, tmp_path: Path
) -> None:
    """That Python may be a venv's itself. What `pip install -e` leaves in a shared Python is broken once the run is
    gone, and rows would fight for it."""
    image = tmp_path / "image"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(image)], check=True)
    (site,) = image.glob("lib/python*/site-packages")
    (site / "in_the_image.py").write_text("WORD = 'from the image'\n")
    person.write_hosts("hosts: {bare: {kind: local, runtime: none, gpus: 0}}\n")
    login_home = tmp_path / "login"
    login_home.mkdir()
    (login_home / ".bash_profile").write_text("PATH=/usr/bin:/bin\n")  # as Debian's /etc/profile
    person.env.update(PATH=f"{image}/bin:/usr/bin:/bin", HOME=str(login_home), PIP_USER="1")
    person.write(
        ".github/workflows/pr-test.yml",
        """\
on: pull_request
jobs:
  e2e-test-bare:
    runs-on: [self-hosted, cpu]
    strategy: {matrix: {info: [{test_file: test_bare.py}]}}
    steps:
      - run: |
          docker run --rm -v "$GITHUB_WORKSPACE:$GITHUB_WORKSPACE" -w "$GITHUB_WORKSPACE" some/image \\
            bash -lc "pip install -e . --no-deps && python tests/${{ matrix.info.test_file }}"
""",
    )
    person.write(
        "tests/test_bare.py",
        "import in_the_image, sys, tiny_slime\n"
        "if __name__ == '__main__':\n    print('prefix', sys.prefix, in_the_image.WORD, tiny_slime.__file__)\n",
    )
    said = person.ci_tasks("remote", "--host", "bare", "bare")
    assert said.code == 0, said.out + said.err
    (log,) = person.logs().values()
    assert "from the image" in log and f"prefix {person.home}" in log
    assert {path.name for path in site.iterdir()} - {"__pycache__"} == {"in_the_image.py"}
    assert not (login_home / ".local").exists()
    assert "Python packages" in {deviation["what"] for deviation in person.records()[0]["deviations"]}
