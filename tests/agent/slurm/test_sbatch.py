"""What sbatch's answers mean: accepted, to be submitted again, or rejected."""

from __future__ import annotations

import pytest

from ci_tasks.agent.slurm import submit

_FAILED = "sbatch: error: Batch job submission failed: "
_POLICY = f"{_FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n"


@pytest.mark.parametrize(("out", "job"), [("12\n", "12"), ("12;cluster\n", "12"), ("Welcome!\n12\n", "12")])
def test_an_accepted_submission_has_its_number(out: str, job: str) -> None:
    assert submit.parse_answer(0, out, "").job == job


@pytest.mark.parametrize(
    ("err", "is_temporary"),
    [
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{_POLICY}", True),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{_POLICY}", True),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n", True),
        (f"{_FAILED}Socket timed out on send/recv operation\n", True),
        (f"{_FAILED}Unable to contact slurm controller (connect failure)\n", True),
        ("no answer from sbatch within 150 s", True),
        (f"sbatch: error: QOSMaxGRESPerJob\n{_POLICY}", False),
        (f"{_FAILED}Requested node configuration is not available\n", False),
        (
            f"sbatch: error: invalid partition specified: nope\n{_FAILED}Invalid partition name specified\n",
            False,
        ),
        ("sbatch: No such file or directory", False),
    ],
)
def test_a_rejection_is_temporary_or_final(err: str, is_temporary: bool) -> None:
    submission = submit.parse_answer(1, "", err)
    assert (submission.job, submission.is_temporary) == ("", is_temporary)


@pytest.mark.parametrize(
    ("err", "reason"),
    [
        (f"sbatch: error: QOSMaxGRESPerJob\n{_POLICY}", "QOSMaxGRESPerJob"),
        (f"{_FAILED}Requested node configuration is not available\n",
         "Batch job submission failed: Requested node configuration is not available"),
        ("", "sbatch ended with 1 and no message"),
    ],
)  # fmt: skip
def test_the_reason_is_sbatchs_message(err: str, reason: str) -> None:
    assert submit.parse_answer(1, "", err).reason == reason
