"""From a log's bytes to facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.verl.judge.read_log import metrics_of, read_run
from ci_tasks.features.verl.levels.levels import LevelRequest, trainings

if TYPE_CHECKING:
    from tests.features.verl.judge.conftest import Writer

SMOKE = trainings(LevelRequest(0))[0]


def test_a_training_is_read_between_its_marks(writer: Writer) -> None:
    log = writer.preflight() + writer.training(SMOKE)
    facts = read_run(lambda: [log.encode()])
    training = facts.trainings["level 0"]
    assert facts.preflight["data"].text == "/data/gsm8k/train.parquet"
    assert (training.exit_code, training.command) == (0, f"bash {SMOKE.script}")
    assert (
        training.settings.resolved
        and training.settings.get("actor_rollout_ref.actor.megatron.vanilla_mbridge") is False
    )
    assert (training.progress, training.trainable) == ((1, 1), 8192)
    assert training.metrics[1]["critic/rewards/mean"] == 0.23
    assert log.split("\n")[training.construction["LoRA"].line_no - 1].endswith("dropout=0.0")
    assert training.error is None


WORKER = "(WorkerDict pid=90) "
STEP_1 = "(TaskRunner pid=71) step:1 - actor/pg_loss:0.5"
HANDLED = [
    "(AgentLoop pid=7) ERROR:2026-01-02 03:04:05,6:Traceback (most recent call last):",
    '(AgentLoop pid=7)   File "/w/env.py", line 4, in update',
    "(AgentLoop pid=7) TypeError: cannot unpack non-iterable NoneType object",
]
OPTIONAL = [
    f"{WORKER}Import of X from transformer_engine failed with: Traceback (most recent call last):",
    f'{WORKER}  File "/b/src/megatron/bridge/utils/import_utils.py", line 211, in safe_import_from',
    f"{WORKER}AttributeError: module 'transformer_engine' has no attribute 'X'",
]
# Lines after which a training ended with exit code 1, and the part of the one that is its reason, "" for none.
REASONS = [
    ([f"{WORKER}  Format validation: FAIL"], ""),
    ([f"{WORKER}<answer> appears 2 times (expected 1)"], ""),
    ([f"{WORKER}len reward_extra_infos_dict['pred']: 960"], ""),
    ([STEP_1], ""),
    ([f"{WORKER}[I1 10:00:00.1 ProcessGroupNCCL.cpp:852] ProcessGroupNCCL initialization options: TIMEOUT(ms): 6"], ""),
    ([*HANDLED, STEP_1], ""),
    ([STEP_1, *HANDLED], "TypeError: cannot unpack"),
    ([f"{WORKER}ValueError: x"], "ValueError: x"),
    (OPTIONAL, ""),
    ([*OPTIONAL, f"{WORKER}ValueError: x", *OPTIONAL], "ValueError: x"),
]


@pytest.mark.parametrize(("body", "reason"), REASONS)
def test_only_an_error_that_nobody_handled_is_a_reason(body: list[str], reason: str, writer: Writer) -> None:
    error = read_run(lambda: [writer.training(SMOKE, body=body, exit_code=1).encode()]).trainings["level 0"].error
    assert (error is not None, reason in (error.text if error else "")) == (bool(reason), True), error


def test_a_loggers_line_ends_no_traceback(writer: Writer) -> None:
    log = writer.training(SMOKE, body=[*HANDLED[:2], "(AgentLoop pid=7) ERROR:2026-01-02 03:04:05,6:x", HANDLED[2]])
    failures = read_run(lambda: [log.encode()]).trainings["level 0"].failures
    assert [failure.text for failure in failures] == [HANDLED[2][18:]]


def test_what_ray_prints_of_other_workers_is_the_same_failure(writer: Writer) -> None:
    repeated = [f"{line}\x1b[32m [repeated 15x across cluster]\x1b[0m" for line in HANDLED]
    log = writer.training(SMOKE, body=[*HANDLED, "", *repeated])
    failures = read_run(lambda: [log.encode()]).trainings["level 0"].failures
    assert [(failure.text, failure.frames) for failure in failures] == [(HANDLED[2][18:], ("env.py:update",))]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_log_may_be_cut_anywhere(size: int, writer: Writer) -> None:
    log = (writer.preflight() + writer.training(SMOKE, body=["ValueError: x"], exit_code=1)).encode()

    def cut() -> Iterator[bytes]:
        yield from (log[at : at + size] for at in range(0, len(log), size))

    assert read_run(cut) == read_run(lambda: [log])


def test_names_may_have_colons_and_the_last_number_is_the_exit_code(writer: Writer) -> None:
    save = trainings(LevelRequest(1))[1]
    assert read_run(lambda: [writer.training(save, exit_code=3).encode()]).trainings["level 1: save"].exit_code == 3


def test_a_mark_behind_a_progress_bar_without_a_newline_is_seen() -> None:
    log = b"ci-tasks-verl: begin: a\nTraining Progress: 100%|x| 1/1 [00:01<00:00]ci-tasks-verl: end: a: 0\n"
    assert read_run(lambda: [log]).trainings["a"].exit_code == 0


def test_the_shells_trace_is_no_mark_no_proof_and_no_resolved_setting() -> None:
    log = (
        b"ci-tasks-verl: begin: a\n+ echo 'ci-tasks-verl: end: a: 0'\n"
        b"+ python3 -m verl.trainer.main_ppo a.feature=on b.c=1\nthe end\n"
    )
    training = read_run(lambda: [log], ["feature"]).trainings["a"]
    assert training.exit_code is None
    assert not training.proofs
    assert training.settings.get("a.feature") == "on"
    assert not training.settings.resolved


def test_a_proof_is_found_in_a_line_of_any_words_behind_rays_prefix() -> None:
    log = b"ci-tasks-verl: begin: a\n(WorkerDict pid=3) replay of 4 layers\nci-tasks-verl: end: a: 0\n"
    proofs = read_run(lambda: [log], [r"^replay of \d+ layers$", "never"]).trainings["a"].proofs
    assert [(pattern, line.line_no) for pattern, line in proofs.items()] == [(r"^replay of \d+ layers$", 2)]


def test_a_proof_that_is_no_expression_is_named() -> None:
    with pytest.raises(UsageError, match=r"--proof '\(' is no regular expression"):
        read_run(lambda: [b""], ["("])


def test_an_error_has_its_line_in_the_whole_log_and_is_of_its_own_training(writer: Writer) -> None:
    body = ["Traceback (most recent call last):", '  File "/v/a.py", line 1, in f', "KeyError: 'lost'"]
    log = "KeyError: 'of another'\n" + writer.training(SMOKE, body=body, exit_code=1) + "KeyError: 'later'\n"
    error = read_run(lambda: [log.encode()]).trainings["level 0"].error
    assert error is not None and error.line_no is not None
    assert log.split("\n")[error.line_no - 1] == "KeyError: 'lost'"


def test_output_after_the_end_is_not_the_trainings(writer: Writer) -> None:
    log = writer.training(SMOKE, body=["nothing to see"], exit_code=1) + "KeyError: 'later'\n"
    assert read_run(lambda: [log.encode()]).trainings["level 0"].error is None


def test_without_a_training_the_error_is_of_the_whole_log() -> None:
    error = read_run(lambda: [b"ok\nOSError: [Errno 28] No space left on device\n"]).error
    assert error is not None and (error.line_no, error.cause) == (2, "disk_full")


def test_shutdown_noise_counts_only_after_the_last_step(writer: Writer) -> None:
    noise = "UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects"
    body = [noise, *writer.steps(SMOKE), noise]
    log = writer.training(SMOKE, body=body)
    noise_lines = read_run(lambda: [log.encode()]).trainings["level 0"].noise
    assert [line.line_no for line in noise_lines] == [log.count("\n") - 2]


def test_bridges_own_paths_are_collected_from_whatever_prints_them() -> None:
    log = (
        b"ci-tasks-verl: begin: a\n[Rank 0] actor: megatron.bridge is /b/src/megatron/bridge/__init__.py\n"
        b'  File "/usr/lib/python3/dist-packages/megatron/bridge/peft/lora.py", line 3, in f\n'
    )
    assert list(read_run(lambda: [log]).trainings["a"].bridge_paths) == ["/b/src", "/usr/lib/python3/dist-packages"]


def test_a_baseline_is_read_from_any_log_of_verls(writer: Writer) -> None:
    bare = "\n".join(writer.steps(SMOKE))
    assert metrics_of(lambda: [bare.encode()])[1]["actor/pg_loss"] == 0.5
    ours = writer.training(SMOKE)
    assert metrics_of(lambda: [ours.encode()])[1]["actor/pg_loss"] == 0.5
    assert metrics_of(lambda: [b""]) == {}


def test_numbers_without_end_are_not_all_kept() -> None:
    log = b"ci-tasks-verl: begin: a\n" + b"".join(b"step:%d - actor/pg_loss:1\n" % step for step in range(3000))
    assert len(read_run(lambda: [log]).trainings["a"].metrics) == 1000
