"""What surrounds a verdict: logs from elsewhere, the trees and the image in the summary's words, what `report` adds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.agent.records import Checkout
from ci_tasks.errors import UsageError
from ci_tasks.features.verl import level_run
from ci_tasks.features.verl.judge.records import Summary
from ci_tasks.features.verl.judge.verdict import BACKEND, VARIANTS, repository, text
from ci_tasks.features.verl.level_run import BASE, CANDIDATE, _remarks, compare, judge_log, read_baseline, seeds
from ci_tasks.features.verl.levels.levels import LevelRequest, trainings
from ci_tasks.trials.rules import Outcome
from ci_tasks.trials.trial import TrialRun
from tests.features.verl.judge.conftest import Writer


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


@pytest.mark.parametrize(("more", "result"), [("", "Not proven"), ("/src/megatron/bridge/models/a.py:3: x\n", "Fail")])
def test_a_log_without_verl_and_bridge_says_nothing_of_the_change(tmp_path: Path, more: str, result: str) -> None:
    log = f"{more}LLM engine with tensor_parallel_size=4\n".encode()
    assert judged(tmp_path, log, LevelRequest(0)).result == result


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


CONTRADICTIONS = [
    ("'vanilla_mbridge': False", "'vanilla_mbridge': True", "Fail"),
    ("pg_loss:0.5", "pg_loss:nan", "Fail"),
    ("Adapter parameters:   8,192", "OSError: [Errno 28] No space left on device", "Blocked"),
    ("nothing", "nothing", "Not proven"),
]


@pytest.mark.parametrize(("old", "new", "result"), CONTRADICTIONS)
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
    (tmp_path / "empty").touch()
    for name, why in {"none": "is not a file", "empty": "is empty"}.items():
        with pytest.raises(UsageError, match=why):
            judge_log(tmp_path / name, LevelRequest(0))
    (tmp_path / "log").write_text("nothing")
    with pytest.raises(UsageError, match="has no critic/rewards/mean of any step"):
        read_baseline(str(tmp_path / "log"))


@pytest.mark.parametrize("file", ["summary.json", "verl.json"])
def test_a_run_of_no_level_that_ended_adds_nothing_to_its_report(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("{}")
    assert level_run.criteria(str(tmp_path)) == []


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


REMARKS = [
    ("verlai/verl:vllm012.dev1", False),
    ("registry:5000/verlai/verl", True),
    ("verlai/verl:vllm024.latest", True),
    ("verlai/verl:vllm024.latest@sha256:00", False),
]


@pytest.mark.parametrize(("image", "moves"), REMARKS)
def test_a_tag_that_moves_and_a_submodule_that_was_not_checked_out_are_remarked_on(
    image: str, moves: bool, tmp_path: Path
) -> None:
    remarks = [*_remarks(tmp_path, image)]
    assert any("has a tag that moves" in remark for remark in remarks) is moves
    assert "git submodule update --init" in remarks[-1]
    (tmp_path / "3rdparty/Megatron-LM/megatron/core").mkdir(parents=True)
    assert len([*_remarks(tmp_path, image)]) == int(moves)


# -- base and candidate Bridge: which runs a comparison makes, what ends it, and what it says. Trainings are not run ---


def run(side: str, result: str, reward: float | None = None, number: int = 1, **more: Any) -> Outcome:
    status = {"Pass": "passed", "Fail": "failed", "Blocked": "blocked"}.get(result, result)
    metrics = {} if reward is None else {"reward": reward, "reward error": 0.001}
    reason = "" if result == "Pass" else f"{result}: why"
    log = f"/runs/{side}.{number}/log"
    given = {"signature": "why", "image": "sha256:1", "gpus": "H100", **more}
    return Outcome(side, "", status, reason=reason, run=f"{side}.{number}", log=log, metrics=metrics, **given)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Compare sides whose nth run gives the nth outcome of theirs, the last one again and again."""
    monkeypatch.setenv("CI_TASKS_HOME", str(tmp_path))

    @contextmanager
    def trees(options: Any, _request: object, _config: object, revision: str = "") -> Iterator[Any]:
        tree = f"tree of {revision or options.bridge}"
        bridge, verl = SimpleNamespace(title=tree, tree=tree), SimpleNamespace(title="v", tree="v")
        yield SimpleNamespace(context=SimpleNamespace(bridge=bridge, verl=verl))

    monkeypatch.setattr(level_run, "trees_under_test", trees)

    def comparing(level: int, sides: dict[str, list[Outcome]], base: str = "main") -> Any:
        ran: list[str] = []

        def perform(_trees: object, one: Any, *_: object) -> Outcome:
            ran.append(one.setting)
            found: Outcome = sides[one.setting][min(one.number, len(sides[one.setting])) - 1]
            return replace(found, row=one.rows[0])

        monkeypatch.setattr(level_run, "_run", perform)
        config: Any = SimpleNamespace(select_hosts=lambda _: ["box"])
        options: Any = SimpleNamespace(base=base, bridge="mine", verl="v", host="box", repeat=5)
        code, result = compare(options, LevelRequest(level), config)
        assert result is not None and code == result.exit_code
        return result, ran

    return comparing


def curve(side: str, *rewards: float, result: str = "Pass") -> list[Outcome]:
    return [run(side, result, reward, number) for number, reward in enumerate(rewards, 1)]


ALIKE = (0.50, 0.52, 0.49, 0.51, 0.50)
BELOW = tuple(reward - 0.1 for reward in ALIKE)


COMPARISONS = [
    (0, [], [run(CANDIDATE, "Pass")], "Pass", "passes: passed on your tree; not compared"),
    (0, [run(BASE, "Pass")], [run(CANDIDATE, "Fail")], "Fail", "yours: your tree fails more often"),
    (0, [run(BASE, "Fail")], [run(CANDIDATE, "Fail")], "Not proven", "already broken"),
    (0, [run(BASE, "Blocked")], [run(CANDIDATE, "Fail")], "Blocked", "base shows nothing"),
    (0, [], [run(CANDIDATE, "Not proven")], "Not proven", "candidate.1 is Not proven: why"),
    (5, curve(BASE, *ALIKE), curve(CANDIDATE, *ALIKE), "Pass", "not worse: reward is not less by 0.05"),
    (5, curve(BASE, *ALIKE), curve(CANDIDATE, *BELOW), "Fail", "worse: reward is less by 0.1"),
    (5, curve(BASE, *ALIKE), curve(CANDIDATE, 0.9, 0.1, 0.8, 0.2, 0.5), "Not proven", "scatters too much"),
    (5, curve(BASE, *ALIKE), [run(CANDIDATE, "Fail")], "Not proven", "cannot tell: run candidate.1 failed"),
]


@pytest.mark.parametrize(("level", "base", "candidate", "result", "words"), COMPARISONS)
def test_the_word_of_a_comparison(
    compared: Any, level: int, base: list[Outcome], candidate: list[Outcome], result: str, words: str, capsys: Any
) -> None:
    found, ran = compared(level, {BASE: base, CANDIDATE: candidate})
    assert (found.result, words in found.sentence) == (result, True), found.sentence
    diff = f"ci-tasks diff base.{min(ran.count(BASE), len(base))} candidate."
    assert (diff in capsys.readouterr().out) == (BASE in ran)


def test_equal_curves_of_a_candidate_that_missed_its_levels_criteria_are_no_pass(compared: Any) -> None:
    missed = [replace(one, reason="Fail: zero gradients") for one in curve(CANDIDATE, *ALIKE)]
    found, _ = compared(5, {BASE: curve(BASE, *ALIKE), CANDIDATE: missed})
    assert found.result == "Not proven" and "but candidate.1 is Fail: zero gradients" in found.sentence


@pytest.mark.parametrize(
    ("changed", "line"),
    [({"image": "sha256:2"}, "image sha256:1 and sha256:2"), ({"gpus": "H200"}, "gpus H100 and H200")],
)
def test_sides_that_did_not_run_alike_get_no_verdict_after_one_pair(
    compared: Any, changed: dict[str, Any], line: str
) -> None:
    candidate = [run(CANDIDATE, "Pass", 0.1, **changed)]
    found, ran = compared(5, {BASE: curve(BASE, *ALIKE), CANDIDATE: candidate})
    assert (found.result, sorted(ran)) == ("Not proven", [BASE, CANDIDATE])
    assert found.sentence == f"the sides ran differently: {line}"


def test_a_comparison_that_ended_begins_again_the_next_time(compared: Any) -> None:
    sides = {BASE: [], CANDIDATE: [run(CANDIDATE, "Pass")]}
    assert [compared(0, sides)[1] for _ in range(2)] == [[CANDIDATE], [CANDIDATE]]


def test_a_candidate_that_is_the_base_is_refused(compared: Any) -> None:
    with pytest.raises(UsageError, match="the candidate's tree equals the base"):
        compared(0, {}, base="mine")


@pytest.mark.parametrize(("level", "candidates"), [(0, {1: 42, 2: 42, 3: 43}), (5, {1: 42, 2: 43, 3: 44})])
def test_both_sides_of_a_pair_have_one_seed_and_each_pair_another(
    tmp_path: Path, level: int, candidates: dict[int, int]
) -> None:
    """Below level 5 the candidate's first run is the reason to compare, and run n + 1 is paired with the base's n."""
    for side, expected in ((BASE, {1: 42, 2: 43}), (CANDIDATE, candidates)):
        for number, seed in expected.items():
            assert f"++data.seed={seed}" in seeds(tmp_path, TrialRun(side, (), number), level)
    rollout = tmp_path / "verl/trainer/config/rollout/rollout.yaml"
    rollout.parent.mkdir(parents=True)
    for config, has_seed in (("name: vllm\n", False), ("name: vllm\nseed: 0\n", True)):
        rollout.write_text(config)
        found = seeds(tmp_path, TrialRun(BASE, ()), level)
        assert ("++actor_rollout_ref.rollout.seed=42" in found) is has_seed
