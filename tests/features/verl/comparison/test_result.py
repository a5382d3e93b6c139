"""What a comparison of base and candidate says: differences first, then ends, then curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ci_tasks.features.verl.comparison import report
from ci_tasks.features.verl.comparison.observed_run import BASE, CANDIDATE, ObservedRun, flatten, links_of, observe
from ci_tasks.features.verl.comparison.result import (
    LevelComparison,
    Pair,
    compared_run,
    differences,
    quantities,
    scores,
    verdict,
)
from ci_tasks.features.verl.comparison.sequential_test import decide
from ci_tasks.features.verl.judge.log_records import RunFacts, TrainingFacts
from ci_tasks.features.verl.judge.resolved_settings import Settings
from ci_tasks.features.verl.levels.levels import Training
from ci_tasks.records import ProbeSummary, RankMemory, RunRecord

REWARD = "critic/rewards/mean"


def run(side: str, pair: int = 1, drop: float = 0.0, **more: Any) -> ObservedRun:
    points = [(step, 0.3 + 0.01 * step + 0.001 * ((step * (pair + 2)) % 5) - drop) for step in range(1, 21)]
    known = {
        "result": "Pass",
        "why": "it passed",
        "completed": True,
        "settings": {"level 5": {"a.lr": "1e-06", "seed": str(pair)}},
        "roles": {"level 5, critic": {"a.b": "1"}, f"level 5, {side}": {"c": "1"}},
        "curves": {REWARD: points, "timing_s/step": [(1, 90.0), (2, 10.0), (3, 11.0)]},
        "memory": {0: 40.0, 1: 41.0},
        "image": "sha256:1",
        "gpus": ("H200",),
        **more,
    }
    return ObservedRun(side, pair, f"{side}.{pair}", f"/runs/{side}{pair}", **known)


def three(**candidate: Any) -> list[Pair]:
    return [(run(BASE, pair), run(CANDIDATE, pair, **candidate)) for pair in (1, 2, 3)]


def concluded(pairs: list[Pair]) -> tuple[str, str]:
    return verdict(pairs, decide(scores(pairs), len(pairs)))


OTHER: dict[str, Mapping[str, Any]] = {
    "level 5: a.lr: base 1e-06, candidate 1e-05": {"settings": {"level 5": {"a.lr": "1e-05", "seed": "1"}}},
    "level 5: a.new: base none, candidate 3": {"settings": {"level 5": {"a.lr": "1e-06", "seed": "1", "a.new": "3"}}},
    "the resolved settings of the candidate were not seen": {"settings": {"level 5": None}},
    "level 5, critic: a.b: base 1, candidate 2": {"roles": {"level 5, critic": {"a.b": "2"}}},
    "image: base sha256:1, candidate sha256:2": {"image": "sha256:2"},
    "GPUs: base H200, candidate H100": {"gpus": ("H100",)},
}


@pytest.mark.parametrize("named", OTHER)
def test_sides_that_ran_otherwise_get_no_verdict_and_the_difference_is_named(named: str) -> None:
    pairs = [(run(BASE), run(CANDIDATE, **OTHER[named]))]
    (line,) = differences(pairs)
    assert named in line
    result, sentence = concluded(pairs * 3)
    assert (result, named in sentence) == ("Not proven", True)


@pytest.mark.parametrize(
    ("candidate", "result", "words"),
    [
        ({}, "Pass", "less than 0.05 below the base's: +0.0 points"),
        ({"drop": 0.1}, "Fail", "below the base's: -10.0 points"),
        ({"completed": False, "result": "Fail", "why": "it crashed"}, "Fail", "did not come to its end, the base did"),
        ({"completed": False, "result": "Not proven", "why": "no end"}, "Not proven", "no end"),
        ({"completed": False, "result": "Blocked", "why": "no GPU"}, "Blocked", "no GPU"),
        ({"result": "Fail", "why": "NaN"}, "Fail", "in every run, the base in none: NaN"),
        ({"curves": {}}, "Not proven", "no reward on both sides"),
    ],
)
def test_the_word_of_a_comparison(candidate: dict[str, Any], result: str, words: str) -> None:
    found, sentence = concluded(three(**candidate))
    assert (found, words in sentence) == (result, True), sentence


def test_a_base_that_does_not_end_blocks_the_comparison() -> None:
    pairs = [(run(BASE, completed=False, result="Fail", why="it crashed"), run(CANDIDATE))]
    assert concluded(pairs)[0] == "Blocked"


def test_one_run_that_missed_its_criteria_keeps_equal_curves_from_a_pass() -> None:
    pairs = three()
    pairs[1] = (pairs[1][0], replace(pairs[1][1], result="Fail", why="zero gradients"))
    assert concluded(pairs) == ("Not proven", verdict(pairs, decide(scores(pairs), 3))[1])
    assert "zero gradients" in concluded(pairs)[1]


def test_below_level_5_both_sides_have_to_pass() -> None:
    assert verdict([(run(BASE), run(CANDIDATE))], None)[0] == "Pass"
    assert verdict([(run(BASE), run(CANDIDATE, result="Not proven"))], None)[0] == "Not proven"
    assert verdict([(run(BASE, result="Not proven"), run(CANDIDATE))], None)[0] == "Not proven"


def test_time_a_step_leaves_the_first_out_and_memory_is_by_rank() -> None:
    found = {one.name: one for one in quantities(three())}
    assert list(found) == ["reward, last half", "time a step", "peak memory of rank 0", "peak memory of rank 1"]
    assert (found["time a step"].base, found["peak memory of rank 1"].candidate) == (10.5, 41.0)


def test_a_runs_own_directory_is_no_difference_on_a_host_or_in_a_container() -> None:
    settings = {"data": {"files": ["/r/20-verl/01/tmp/a", "/data/b"]}, "n": {}, "seed": 3}
    assert flatten(settings, "/home/x/runs/20-verl/01") == flatten(
        {"data": {"files": ["/home/y/20-verl/02/tmp/a", "/data/b"]}, "n": {}, "seed": 3}, "/z/20-verl/02"
    )
    assert flatten(settings, "/q")["data.files"] == "['/r/20-verl/01/tmp/a', '/data/b']"


@pytest.mark.parametrize(
    ("line", "links"),
    [
        (b"wandb: View run x at: https://wandb.ai/me/verl/runs/3fk2\x1b[0m\n", ["https://wandb.ai/me/verl/runs/3fk2"]),
        (b"(TaskRunner pid=1) Saving tensorboard log to tensorboard_log/p/e.\n", ["tensorboard_log/p/e"]),
        (
            b"wandb: Run data is saved locally in /w/wandb/offline-run-20260102_030405-a1b2\n",
            ["/w/wandb/offline-run-20260102_030405-a1b2"],
        ),
        (b"wandb: Run data is saved locally in /w/wandb/run-20260102_030405-a1b2\n", []),
        (b"https://example.com/page https://wandb.ai/me/verl\n", []),
    ],
)
def test_where_the_loggers_of_a_run_wrote(line: bytes, links: list[str]) -> None:
    assert links_of(line) == links


def test_a_run_is_observed_with_its_curves_memory_and_end() -> None:
    metrics = {step: {REWARD: 0.1 * step, "other": 1.0} for step in range(1, 4)}
    facts = TrainingFacts(
        "level 5",
        1,
        exit_code=0,
        metrics=metrics,
        settings=Settings({"a": {"b": "/there/20-verl-a1/01/x"}}, resolved=True),
    )
    memory = RankMemory(1, 7, 0, "GPU-1", 3 << 30, 4 << 30)
    record = RunRecord("r.01", "verl", "row", "box", "passed", probe=ProbeSummary(memory=(memory,)))
    last = Training("level 5", 5, {}, steps=3)
    seen = observe(
        BASE,
        2,
        record,
        "/r/01",
        ("Pass", "why"),
        RunFacts({}, {"level 5": facts}),
        None,
        last,
        ["x", "x"],
        "/on/the/host/20-verl-a1/01",
    )
    assert (seen.completed, seen.memory, seen.links) == (True, {1: 3.0}, ("x",))
    assert dict(seen.curves) == {REWARD: tuple((step, 0.1 * step) for step in range(1, 4))}
    assert dict(seen.settings) == {"level 5": {"a.b": "'RUN/x'"}}
    cut = replace(last, steps=4)
    assert not observe(BASE, 2, record, "", ("", ""), RunFacts({}, {"level 5": facts}), None, cut, ()).completed


def compared(pairs: list[Pair]) -> LevelComparison:
    word, sentence = concluded(pairs)
    named = tuple(differences(pairs))
    links = replace(compared_run(pairs[0][0]), links=("https://wandb.ai/a/b/runs/c", "tensorboard_log/p"))
    runs = (links, *(compared_run(run) for pair in pairs for run in pair))
    return LevelComparison(
        word,
        0,
        sentence,
        5,
        "1234567",
        "89abcde + 1 changed file",
        "77",
        "box",
        3,
        5,
        named,
        None,
        quantities(pairs),
        runs,
    )


def test_the_text_says_what_changed_and_what_was_not_seen() -> None:
    shown = "\n".join(report.text(compared(three(memory={}, drop=0.1)), 100))
    assert "reward, last half" in shown
    assert "-0.1 (-" in shown
    assert "not seen" in shown
    assert "https://wandb.ai/a/b/runs/c: base.1" in shown
