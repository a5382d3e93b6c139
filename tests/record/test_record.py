"""The samples are planned as recorded, and a record says what changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.record import record

SAMPLE = record.EXAMPLES / "tiny-slime"


def test_the_sample_is_planned_as_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert record.main([str(SAMPLE)]) == 0, capsys.readouterr().out


_SECRET = "      WANDB_API_KEY: ${{ secrets.WANDB_API_KEY }}\n"
_EVAL = "      TINY_TEST_ENABLE_EVAL: ${{ matrix.info.enable_eval || '1' }}\n"
# The job, what is replaced in it, and what the record says of its label then.
EDITS = [
    ("e2e-test-sglang-config", (_SECRET + _EVAL, _EVAL + _SECRET), {"env"}),
    ("e2e-test-megatron", ("--ipc=host", "--ipc=private"), {"steps, docker"}),
    ("e2e-test-precision", ('"num_gpus": 8', '"num_gpus": 4'), {"list of rows", "steps, docker, gpus"}),
    ("e2e-test-ckpt", ("    timeout-minutes: 30\n", ""), {"list of rows", "deviations"}),
    ("e2e-test-nccl", ("actions/checkout@v4", "somebody/action@v1"), {"missing → refused"}),
    ("e2e-test-image", ("run-ci-image", "run-ci-images"), {"list of rows"}),
]


def test_record_names_the_rows_and_the_parts_that_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkout = shutil.copytree(SAMPLE, tmp_path / "tiny-slime")
    workflow = checkout / record.PR_TEST
    jobs = re.split(r"\n\n  (?=\S)", workflow.read_text())
    for job, (before, after), _ in EDITS:
        number = next(number for number, text in enumerate(jobs) if text.startswith(f"{job}:"))
        assert before in jobs[number]
        jobs[number] = jobs[number].replace(before, after)
    workflow.write_text("\n\n  ".join(jobs))
    assert record.main([str(checkout)]) == 1
    found: dict[str, set[str]] = {}
    for line in capsys.readouterr().out.splitlines()[1:]:
        name, _, change = line.removesuffix("  (HEAD)").partition(": ")
        found.setdefault(name.split()[1] if " " in name else "without a name now", set()).add(change)
    assert found.pop("without a name now") == {"planned → missing"}
    assert found == {job.removeprefix("e2e-test-"): changes for job, _, changes in EDITS}


def test_a_file_keeps_what_holds_at_several_revisions_once(tmp_path: Path) -> None:
    same, other = "aa bb cc dd ee", "aa bb cc dd ff"
    values = [same, same, other, record.REFUSED, same]
    written = {f"revision{number}": {"ci.yml tests one": value} for number, value in enumerate(values)}
    record.write(tmp_path / "record.txt", written)
    key = record.key_of("ci.yml tests one")
    assert (tmp_path / "record.txt").read_text().splitlines()[1:] == [
        f"{key} {same} 0-1,4",
        f"{key} {other} 2",
        f"{key} refused 3",
    ]
    assert record.read(tmp_path / "record.txt") == {
        f"revision{number}": {key: value} for number, value in enumerate(values)
    }


ASKED = [
    (
        "needs needs.a-b.outputs.c_d, inputs.e-f, vars.G, which only GitHub knows: vars.H",
        "output=a-b.c_d input=e-f var=G",
    ),
    ("the workflow does not say how many GPUs; give them: --gpus N", "gpus=8"),
    ("runs docker run --gpus all", ""),
]


@pytest.mark.parametrize(("error", "options"), ASKED)
def test_what_a_refused_plan_asks_for_is_given(error: str, options: str) -> None:
    given = [option.removeprefix("--").removesuffix("=given") for option in record.asked_for(error)]
    assert given == options.split()


def test_a_run_script_of_another_form_is_an_error_and_no_empty_record() -> None:
    with pytest.raises(RuntimeError, match=r"a step of run\.sh is not as tests/record reads it"):
        record.steps("if begin Execute 1 0 ''; then\n  true\nfi\n")


def test_another_clone_is_refused_with_the_names_of_those_that_have_a_record(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"not called as a repository with a record: slime, verl, Megatron-Bridge"):
        record.name_of(tmp_path)
