"""The end of a run whose Slurm job is over and whose agent wrote none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_tasks.agent.records import Secrets, SlurmJob
from ci_tasks.agent.run_directory import RunDir, write_record
from ci_tasks.agent.slurm import job_file
from ci_tasks.agent.slurm.states import SlurmJobState


@pytest.mark.parametrize(
    ("output", "last"),
    [
        (None, "; is the workspace of hosts.yaml on a file system of all nodes?"),
        (b"", "; is the workspace of hosts.yaml on a file system of all nodes?"),
        (b"bash: cannot open\n", ": bash: cannot open"),
        (b"first\nno \xff such file\n\n", ": no \ufffd such file"),
        (b"module: command not found\n" * 1000 + b"no python3", ": no python3"),
        (b"x" * 100_000, ": " + "x" * 4096),
    ],
    ids=["no file", "no output", "one line", "not UTF-8", "many lines", "a line without an end"],
)
def test_a_job_that_could_not_start_is_blocked_with_the_last_line_of_its_output(
    tmp_path: Path, output: bytes | None, last: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    job_file.write(str(run), SlurmJob(home=str(tmp_path), name="batch", id="7"))
    if output is not None:
        (run / "slurm.out").write_bytes(output)
    status = job_file.record_end(str(run), SlurmJobState("FAILED", node="n1"))
    assert (status.state, status.end, status.exit_code, status.concluded) == ("ended", "exit", 125, True)
    assert status.error == f"the job could not start on n1 (FAILED){last}"
    assert Path(RunDir(str(run)).log).read_text() == f"ci-tasks: blocked: {status.error}\n"


def test_what_an_agent_that_died_left_is_masked_as_long_as_the_values_are_there(tmp_path: Path) -> None:
    """They are in a file of the run's directory, which goes then."""
    run = RunDir(str(tmp_path / "run"))
    Path(run.artifacts).mkdir(parents=True)
    job_file.write(run.path, SlurmJob(home=str(tmp_path), name="batch", id="7"))
    Path(run.path, "slurm.out").write_text("no such token: correct-horse\n")
    Path(run.junit).write_text("<testcase name='correct-horse'/>")
    write_record(job_file.secrets_path(run.path), Secrets({"TOKEN": "correct-horse", "EMPTY": ""}))
    status = job_file.record_end(run.path, SlurmJobState("FAILED", node="n1"))
    assert status.masked
    assert not [path for path in Path(run.path).rglob("*") if path.is_file() and b"correct" in path.read_bytes()]
    assert Path(run.junit).read_text() == "<testcase name='***'/>"
