"""Base and candidate Bridge: which runs a comparison makes, what ends it, and what it says. Trainings are not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_tasks.errors import UsageError
from ci_tasks.features.verl import level_run
from ci_tasks.features.verl.level_run import BASE, CANDIDATE, compare, seeds
from ci_tasks.features.verl.levels.levels import LevelRequest
from ci_tasks.trials.rules import Outcome
from ci_tasks.trials.trial import TrialRun


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


@pytest.mark.parametrize(
    ("level", "base", "candidate", "result", "words"),
    [
        (0, [], [run(CANDIDATE, "Pass")], "Pass", "passes: passed on your tree; not compared"),
        (0, [run(BASE, "Pass")], [run(CANDIDATE, "Fail")], "Fail", "yours: your tree fails more often"),
        (0, [run(BASE, "Fail")], [run(CANDIDATE, "Fail")], "Not proven", "already broken"),
        (0, [run(BASE, "Blocked")], [run(CANDIDATE, "Fail")], "Blocked", "base shows nothing"),
        (0, [], [run(CANDIDATE, "Not proven")], "Not proven", "candidate.1 is Not proven: why"),
        (5, curve(BASE, *ALIKE), curve(CANDIDATE, *ALIKE), "Pass", "not worse: reward is not less by 0.05"),
        (5, curve(BASE, *ALIKE), curve(CANDIDATE, *BELOW), "Fail", "worse: reward is less by 0.1"),
        (5, curve(BASE, *ALIKE), curve(CANDIDATE, 0.9, 0.1, 0.8, 0.2, 0.5), "Not proven", "scatters too much"),
        (5, curve(BASE, *ALIKE), [run(CANDIDATE, "Fail")], "Not proven", "cannot tell: run candidate.1 failed"),
    ],
)
def test_the_word_of_a_comparison(
    compared: Any, level: int, base: list[Outcome], candidate: list[Outcome], result: str, words: str
) -> None:
    found, _ = compared(level, {BASE: base, CANDIDATE: candidate})
    assert (found.result, words in found.sentence) == (result, True), found.sentence


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
    assert found.sentence == f"the sides did not run alike: {line}"


def test_a_comparison_that_ended_begins_again_the_next_time(compared: Any) -> None:
    sides = {BASE: [], CANDIDATE: [run(CANDIDATE, "Pass")]}
    assert [compared(0, sides)[1] for _ in range(2)] == [[CANDIDATE], [CANDIDATE]]


def test_a_candidate_that_is_the_base_is_refused(compared: Any) -> None:
    with pytest.raises(UsageError, match="the candidate's tree is that of the base"):
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
    for text, has_seed in (("name: vllm\n", False), ("name: vllm\nseed: 0\n", True)):
        rollout.write_text(text)
        found = seeds(tmp_path, TrialRun(BASE, ()), level)
        assert ("++actor_rollout_ref.rollout.seed=42" in found) is has_seed
