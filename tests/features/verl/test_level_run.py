"""What surrounds a verdict: logs from elsewhere, the trees and the image in the summary's words, what `report` adds."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ci_tasks.agent.records import Checkout
from ci_tasks.errors import UsageError
from ci_tasks.features.verl.judge.records import Summary
from ci_tasks.features.verl.judge.verdict import BACKEND, VARIANTS, repository, text
from ci_tasks.features.verl.level_run import _remarks, judge_log, read_baseline
from ci_tasks.features.verl.levels.levels import LevelRequest, trainings
from tests.features.verl.judge.conftest import Writer

if TYPE_CHECKING:
    from collections.abc import Callable


def plain(writer: Writer, request: LevelRequest, alter: Callable[[str], str] = str) -> bytes:
    """The log of a level's own trainings as the wrapper alone writes it."""
    planned = [one for one in trainings(request) if one.level == request.level]
    lines = alter("".join(writer.training(one) for one in planned)).splitlines()
    return "\n".join(line for line in lines if not line.startswith("ci-tasks-verl")).encode()


def judged(tmp_path: Path, content: bytes, request: LevelRequest) -> Summary:
    log = tmp_path / "slurm.out"
    log.write_bytes(content)
    return judge_log(log, request)


def test_what_a_log_alone_cannot_show_is_not_seen_and_what_it_shows_counts(tmp_path: Path) -> None:
    request = LevelRequest(1)
    summary = judged(tmp_path, plain(Writer(), request), request)
    assert summary.result == "Not proven", summary.sentence
    found = {one.training: {each.name: each.outcome for each in one.criteria} for one in summary.criteria}
    assert [*found] == ["level 1: save", "level 1: resume"], "a training begins where the settings are printed"
    assert found["level 1: resume"]["resume from the checkpoint"] == "shown"
    assert found["level 1: resume"]["checkpoint files read"] == "not seen"
    statuses = {one.name: one.status for one in summary.deliverables}
    assert (statuses[BACKEND], statuses[VARIANTS]) == ("Skipped", "Not proven")
    assert summary.deliverables[0].text.startswith("not in this log: --checks-from"), "no run of ours left them out"
    assert "Traceback" not in "\n".join(text(summary))


def test_a_log_of_a_run_of_ours_is_divided_by_its_marks(tmp_path: Path) -> None:
    writer, request = Writer(), LevelRequest(1)
    log = writer.preflight() + "".join(writer.training(one) for one in trainings(request)[:2])
    summary = judged(tmp_path, log.encode(), request)
    assert [one.training for one in summary.criteria] == ["level 1: save"]
    assert [one.outcome for one in summary.criteria[0].criteria if one.name == "successful exit"] == ["shown"]


def test_a_line_that_level_0_of_the_log_has_too_proves_no_feature(tmp_path: Path) -> None:
    writer, request = Writer(), LevelRequest(4, proofs=("Adapter parameters",), env={"ROUTING_REPLAY_MODE": "R3"})
    log = writer.preflight() + "".join(writer.training(one) for one in trainings(request))
    (found,) = judged(tmp_path, log.encode(), request).criteria
    said = {each.outcome: each.evidence for each in found.criteria if "feature" in each.name}
    assert "proves nothing" in said["not seen"]


def test_a_long_log_without_lines_is_read_in_pieces(tmp_path: Path) -> None:
    tracemalloc.start()
    judged(tmp_path, b"x" * 30_000_000, LevelRequest(0))
    tracemalloc.clear_traces()
    judge_log(tmp_path / "slurm.out", LevelRequest(0))
    assert tracemalloc.get_traced_memory()[1] < 15_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("'vanilla_mbridge': False", "'vanilla_mbridge': True", "Fail"),
        ("pg_loss:0.5", "pg_loss:nan", "Fail"),
        ("Adapter parameters:   8,192", "OSError: [Errno 28] No space left on device", "Blocked"),
        ("nothing", "nothing", "Not proven"),
    ],
)
def test_what_a_log_contradicts_fails_or_blocks(old: str, new: str, result: str, tmp_path: Path) -> None:
    request = LevelRequest(0)
    content = plain(Writer(), request, lambda text: text.replace(old, new))
    if result == "Blocked":
        content = content.partition(b"step:1")[0]
    summary = judged(tmp_path, content, request)
    assert summary.result == result, summary.sentence


def test_cited_checks_count_as_cited_and_are_a_limitation(tmp_path: Path) -> None:
    request = LevelRequest(0, checks="12 passed in 3s")
    summary = judged(tmp_path, plain(Writer(), request), request)
    assert summary.deliverables[0].text == "as cited, not run here: 12 passed in 3s"
    assert any(line.startswith("focused Bridge checks were not run here") for line in summary.limitations)


def test_a_log_that_is_not_there_or_has_no_reward_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no file"):
        judge_log(tmp_path / "none", LevelRequest(0))
    (tmp_path / "log").write_text("nothing")
    with pytest.raises(UsageError, match="has no critic/rewards/mean of any step"):
        read_baseline(str(tmp_path / "log"))


def test_a_tree_is_named_by_the_commit_that_git_knows_and_the_files_that_differ() -> None:
    tree = Checkout(commit="f" * 40, tree="", head="a" * 40, dirty=("src/x.py", "b.py"))
    assert repository(tree) == f"{'a' * 12} plus src/x.py, b.py"
    assert repository(replace(tree, dirty=())) == f"{'a' * 12}, no dirty files"
    assert repository(replace(tree, head="")) == "no git repository"


def test_a_summary_has_at_most_thirty_lines_whatever_failed() -> None:
    writer = Writer()
    request = LevelRequest(1, exact=True, no_reward_model=True, dummy_config="/c.json", model_path="/m")
    edits = [{"body": ["(raylet) noise"] * 50, "exit_code": 1}] * 4
    for preflight in ({}, {"bridge_checks": None, "import_worker": None}):
        summary = writer.ran(request, *edits, preflight=preflight)
        assert len(text(summary)) <= 30


@pytest.mark.parametrize(
    ("image", "moves"),
    [
        ("verlai/verl:vllm012.dev1", False),
        ("registry:5000/verlai/verl", True),
        ("verlai/verl:vllm024.latest", True),
        ("verlai/verl:vllm024.latest@sha256:00", False),
    ],
)
def test_a_tag_that_moves_and_a_submodule_that_was_not_checked_out_are_remarked_on(
    image: str, moves: bool, tmp_path: Path
) -> None:
    remarks = [*_remarks(tmp_path, image)]
    assert any("has a tag that moves" in remark for remark in remarks) is moves
    assert "git submodule update --init" in remarks[-1]
    (tmp_path / "3rdparty/Megatron-LM/megatron/core").mkdir(parents=True)
    assert len([*_remarks(tmp_path, image)]) == int(moves)
