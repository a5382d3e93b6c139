"""A label on a real Slurm of two nodes, whose login node is a real sshd: the right statuses and logs, nothing left."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import ends, until

# A label whose rows are a line of bash each: what they do stands in their arguments.
WORKFLOW = """\
on: pull_request
jobs:
  e2e-test-lines:
    runs-on: [self-hosted, cpu]
    strategy:
      matrix:
        info:
ROWS
    steps:
      - uses: actions/checkout@v4
      - run: bash line.sh ${{ matrix.info.test_args }}
"""
ROW = "          - {num_gpus: GPUS, test_file: test_tiny_ckpt.py, test_args: ARGS}\n"
ENDLESS = "echo begun in $(cat mark 2>/dev/null || echo 'a new checkout'); echo old > mark; sleep 600"


@pytest.fixture
def far(person: Any, cluster: Any) -> Any:
    """At the sample's checkout, with `cluster` in a hosts.yaml of their own."""
    return cluster.person(person)


def lines(person: Any, script: str, *rows: str, gpus: int = 1) -> None:
    """The label `lines`: `script` with each of `rows` as its $1."""
    text = "".join(ROW.replace("GPUS", str(gpus)).replace("ARGS", row) for row in rows)
    person.write(".github/workflows/pr-test.yml", WORKFLOW.replace("ROWS\n", text))
    person.write("line.sh", script + "\n")


def runs_there(cluster: Any) -> dict[str, Path]:
    """What stands in a row's brackets → its run directory on the cluster."""
    found = {}
    for plan in cluster.home.glob("runs/*/*/plan.json"):
        found[re.sub(r".*\[(.*)\]", r"\1", json.loads(plan.read_text())["row"])] = plan.parent
    return found


def job_of(run: Path) -> str:
    """As Slurm calls it; empty before Slurm has it."""
    file = run / "slurm.json"
    return str(json.loads(file.read_text())["id"]) if file.exists() else ""


def log_there(run: Path) -> str:
    return (run / "log").read_text() if (run / "log").exists() else ""


def logs(person: Any) -> list[str]:
    """The logs that there are by now, of a person's one batch."""
    return [path.read_text() for path in sorted(person.home.glob("runs/*/*/log"))]


def waiting(person: Any) -> list[str]:
    """What the rows of a person's one batch wait for, as every view shows it."""
    return [
        text for file in person.home.glob("runs/*/*/status.json") for text in json.loads(file.read_text())["waiting"]
    ]


def by_row(person: Any) -> dict[str, dict[str, Any]]:
    return {re.sub(r".*\[(.*)\]", r"\1", record["row"]): record for record in person.records()}


@pytest.mark.smoke
def test_a_label_runs_on_the_gpus_that_slurm_gives(far: Any, cluster: Any) -> None:
    said = far.ci_tasks("remote", "--host", "cluster", "ckpt", "--only", "load-optimizer-gpu")
    assert said.code == 0, said.out + said.err
    assert [record["status"] for record in far.records()] == ["passed"] * 2
    for record, log in zip(far.records(), far.logs().values(), strict=True):
        (acquired,) = re.findall(r"Acquired GPUs: (\S+)", log)
        assert [int(gpu) for gpu in acquired.split(",")] == record["gpu_ids"]
    # Two rows of four GPUs on one node: one of them has the upper half, which its lock script would not have taken.
    assert {tuple(record["gpu_ids"]) for record in far.records()} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert "GPU locks" in {one["what"] for one in far.records()[0]["deviations"]}
    assert cluster.left() == []


def test_every_way_in_which_slurm_ends_a_job_has_its_status(far: Any, cluster: Any) -> None:
    lines(far, f"[ $1 = fails ] && exit 3; {ENDLESS}", "fails", "limit", "stopped", "lost", "again", gpus=3)
    client = far.start("remote", "--host", "cluster", "lines")
    until(lambda: sum("begun" in log_there(run) for run in runs_there(cluster).values()) == 4, "all rows run")
    runs = runs_there(cluster)
    jobs = {row: job_of(run) for row, run in runs.items()}
    cluster.scontrol("update", f"JobId={jobs['limit']}", "EndTime=now+1")
    cluster.scancel(jobs["stopped"])
    cluster.scontrol("requeue", jobs["again"])
    node = json.loads((runs["lost"] / "status.json").read_text())["slurm"]["node"]
    cluster.scontrol("update", f"JobId={jobs['lost']}", "Requeue=0")
    until(lambda: cluster.jobs().get(jobs["again"]) == "PENDING", "it is queued again")
    until(lambda: cluster.jobs().get(jobs["limit"]) == "TIMEOUT", "its time is up")
    cluster.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=test")
    cluster.scontrol("update", f"JobId={jobs['again']}", "StartTime=now")
    until(lambda: log_there(runs["again"]).count("begun") == 2, "it has begun again")
    cluster.scancel("--batch", "--signal=TERM", jobs["again"])
    ends(client, 130)
    records, logs = by_row(far), far.logs()
    statuses = {row: record["status"] for row, record in records.items()}
    assert statuses == {
        "fails": "failed",
        "limit": "failed",
        "stopped": "cancelled",
        "lost": "lost",
        "again": "cancelled",
    }
    assert records["fails"]["exit_code"] == 3
    said = {re.sub(r".*\[(.*)\]", r"\1", row): log for row, log in logs.items()}
    assert "ci-tasks: Slurm ended the job (TIMEOUT): it reached the time limit of the job" in said["limit"]
    assert "ci-tasks: Slurm ended the job (CANCELLED" in said["stopped"]
    assert f"ci-tasks: Slurm ended the job (NODE_FAIL): its node failed, on {node}" in said["lost"]
    again = [line for line in said["again"].splitlines() if "begun" in line or "Slurm started" in line]
    assert again[0] == again[2] == "begun in a new checkout"
    assert "Slurm started the job again (requeue 1)" in again[1]
    for row, record in records.items():
        log = said[row].encode()
        assert record["log"] == {"bytes": len(log), "sha256": hashlib.sha256(log).hexdigest()}
    assert cluster.left() == []


def test_install_steps_that_rows_share_are_a_job_and_no_job_asks_for_more_time_than_the_partition_has(
    far: Any, cluster: Any
) -> None:
    cluster.scontrol("update", "PartitionName=main", "MaxTime=12")
    try:
        workflow = WORKFLOW.replace(
            "      - run:",
            "      - uses: actions/setup-python@v5\n        with:\n"
            "          python-version: '3'\n      - run: echo INSTALLED=yes >> \"$GITHUB_ENV\"\n      - run:",
        )
        rows = "".join(ROW.replace("GPUS", "0").replace("ARGS", row) for row in ("a", "b"))
        far.write(".github/workflows/pr-test.yml", workflow.replace("ROWS\n", rows))
        far.write("line.sh", "echo installed: $INSTALLED\n")
        said = far.ci_tasks("remote", "--host", "cluster", "lines")
    finally:
        cluster.scontrol("update", "PartitionName=main", "MaxTime=INFINITE")
    assert said.code == 0, said.out + said.err
    assert all("installed: yes" in log for log in far.logs().values())
    assert "time limit:" in said.out
    assert [
        line for path in far.home.rglob("batch.sh") for line in path.read_text().splitlines() if "--time" in line
    ] == ["#SBATCH --time=12"] * 3
    assert cluster.left() == []


def test_ctrl_c_ends_what_runs_in_order_and_what_waits_at_once(far: Any, cluster: Any) -> None:
    script = "trap 'echo swept up; exit 1' TERM; echo begun; sleep 600 & wait"
    lines(far, script, "a", "b", "c", gpus=8)
    client = far.start("remote", "--host", "cluster", "lines")
    pending = "Slurm: PENDING (Resources)"
    until(lambda: any(pending in text for text in waiting(far)), "the third is known to wait for a node")
    until(lambda: sum("begun" in log for log in logs(far)) == 2, "two of them run")
    client.send_signal(2)
    ends(client, 130)
    assert {record["status"] for record in far.records()} == {"cancelled"}
    assert sum("swept up" in log for log in far.logs().values()) == 2, "their own end is in their logs"
    assert cluster.left() == []


def test_a_run_that_was_left_is_found_again_whatever_slurm_has_forgotten(far: Any, cluster: Any) -> None:
    lines(far, ENDLESS, "stopped", "lost", gpus=8)
    assert far.ci_tasks("remote", "--host", "cluster", "lines", "--detach").code == 0
    until(lambda: sum("begun" in log_there(run) for run in runs_there(cluster).values()) == 2, "both rows run")
    runs = runs_there(cluster)
    cluster.scancel(job_of(runs["stopped"]))
    cluster.scontrol("update", f"JobId={job_of(runs['lost'])}", "Requeue=0")
    node = json.loads((runs["lost"] / "status.json").read_text())["slurm"]["node"]
    cluster.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=test")
    over = {job_of(runs["stopped"]): "CANCELLED", job_of(runs["lost"]): "NODE_FAIL"}
    until(lambda: over.items() <= cluster.jobs().items(), "both are over")
    # No squeue that knows them, and an sacct without a database: what is left is what the agents wrote.
    cluster.forgets()
    said = far.ci_tasks("attach", "last")
    assert said.code == 125, said.out + said.err
    assert {row: record["status"] for row, record in by_row(far).items()} == {"stopped": "lost", "lost": "lost"}
    assert any("the job vanished" in log for log in far.logs().values())
    assert cluster.left() == []
