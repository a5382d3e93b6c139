"""A bisection whose runs are given: what is told, what hosts are trusted with, what it leaves with."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.config import Config, read
from ci_tasks.errors import Blocked, CheckoutError, UsageError
from ci_tasks.given_values import GivenValues, OverlaySource
from ci_tasks.records import BatchResult, RunRecord, Timings, Triage
from ci_tasks.report.results import batch_result
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest
from ci_tasks.trials.bisect import bisect, images_of
from ci_tasks.trials.options import BisectOptions
from ci_tasks.trials.rules import BLOCKED, FAILED, MISSING, PASSED
from tests.parts.commands import run_command
from tests.parts.git import git, repository
from tests.trials.given import workflow

WORKFLOW = workflow("test_a.py", "test_ab.py")
CONFIG = read("hosts: {one: {kind: local}}", "hosts.yaml")
COUNT, CULPRIT = 8, 5
IMAGES = tuple(f"registry.example/slime@sha256:{number:064x}" for number in range(9))
NUMBERS = count(1)
Kind = tuple[str, str]  # kind and signature
Capture = pytest.CaptureFixture[str]


class Runs:
    """Takes the place of runs: `says` knows what a commit (by number) says on a host. `requests` are all that ran."""

    def __init__(self, says: Callable[[int, str], Kind]) -> None:
        self.says, self.requests, self.ran = says, list[tuple[int, str]](), set[tuple[int, str, str | None]]()
        self.stop_after = 1000

    def __call__(
        self, source: CheckoutSource, config: Config, request: RunRequest, how: ExecutionOptions, **more: Any
    ) -> BatchResult:
        if len(self.requests) == self.stop_after:
            raise KeyboardInterrupt
        number = git(source.path, "log", "-1", "--format=%s", source.rev or "").split()[-1].partition("\x1b")[0]
        position = IMAGES.index(request.image) if request.image else int(number)
        self.requests.append((position, request.host))
        self.ran.add((position, source.rev or "", request.image))
        kind, word = self.says(position, request.host)
        if kind == MISSING:
            raise UsageError(word)
        triage = Triage("x", "failed", 1, word, word, 0.9) if kind == FAILED else None
        (row,) = request.rows
        id = f"20260101-120000-quick.{next(NUMBERS)}"
        reason = word if kind == BLOCKED else ""
        record = RunRecord(id, "quick", row, request.host, kind, reason, timings=Timings(60.0), triage=triage)
        return batch_result("batch", [record], {})


def truth(position: int, host: str) -> Kind:
    return (FAILED, "it is broken#1") if position >= CULPRIT else (PASSED, "")


def but(**others: Kind) -> Callable[[int, str], Kind]:
    """The truth, but for hosts (`one`), commits (`c3`) or both (`one_c3`) that say something else."""

    def says(position: int, host: str) -> Kind:
        for name in (f"{host}_c{position}", f"c{position}", host):
            if name in others:
                return others[name]
        return truth(position, host)

    return says


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commits c0 to c8, with these names as tags."""
    path = repository(tmp_path_factory.mktemp("history"), {".github/workflows/pr-test.yml": WORKFLOW})
    for number in range(COUNT + 1):
        git(path, "commit", "-q", "--allow-empty", "-m", f"change {number}\x1b[2J")
        git(path, "tag", f"c{number}")
    return path


@pytest.fixture
def repo(history: Path, tmp_path: Path) -> Path:
    return shutil.copytree(history, tmp_path / "checkout")


Ask = Callable[..., int]


@pytest.fixture
def ask(repo: Path) -> Ask:
    def run_bisect(runs: Runs, *overlays: OverlaySource, **more: object) -> int:
        defaults: dict[str, object] = {"good": "c0", "bad": f"c{COUNT}", "label": "quick", "only": "a"}
        defaults |= {"repo": str(repo), "host": "one"}
        options = BisectOptions(**{**defaults, **more})  # type: ignore[arg-type]
        config = replace(CONFIG, given=GivenValues(overlays=overlays))
        return bisect(options, config, execute=runs).exit_code

    return run_bisect


def test_another_tree_of_an_overlay_is_another_trial(ask: Ask, tmp_path: Path) -> None:
    module, overlay = tmp_path / "over/extra.py", OverlaySource("extra", str(tmp_path / "over"))
    module.parent.mkdir()
    for text in ("", "V = 1"):
        module.write_text(text)
        runs, again = Runs(truth), Runs(truth)
        assert (ask(runs, overlay), len(runs.requests) > 8, ask(again, overlay), again.requests) == (0, True, 0, [])

    def edits(position: int, host: str) -> Kind:
        module.write_text("V = 3")
        return truth(position, host)

    module.write_text("V = 2")
    with pytest.raises(CheckoutError, match="has changed since the trial began"):
        ask(Runs(edits), overlay)


def test_the_end_names_the_commit_its_probability_and_what_shows_it(ask: Ask, capsys: Capture) -> None:
    assert ask(Runs(truth)) == 0
    out = capsys.readouterr().out
    assert re.search(r"^if it always fails: \d+ runs; no earlier run says how long each takes; more if", out, re.M)
    assert "row a of label quick" in out and "bisect: 8 commits after" in out, "not ab"
    end = out[out.index("the culprit: ") :].splitlines()
    assert end[1].startswith(f"    change {CULPRIT}")
    assert end[2].startswith("    Ada <ada@example.com>, 20")
    assert "from it on, in 0 of " in end[3]
    assert end[4].startswith("see it: git -C ")
    assert "\x1b" not in out


def test_a_host_that_blocks_commit_after_commit_has_to_run_the_bad_end(ask: Ask) -> None:
    gaps = {f"c{number}": (BLOCKED, "the install steps ended with 1") for number in range(1, COUNT)}
    runs = Runs(but(**gaps))
    assert ask(runs) == 1, "the commits cannot be tested; the host can"
    blocked = 0
    for position, _ in runs.requests:
        blocked = 0 if position in (0, COUNT) else blocked + 1
        assert blocked <= 3


def test_a_host_that_cannot_run_the_bad_end_blocks_and_the_same_command_goes_on_once_it_can(ask: Ask) -> None:
    with pytest.raises(Blocked, match="one cannot run the trial: no GPU"):
        ask(Runs(but(one=(BLOCKED, "no GPU"))))
    assert ask(Runs(truth)) == 0


def test_only_untestable_commits_left_are_listed(ask: Ask, capsys: Capture) -> None:
    assert ask(Runs(but(c4=(FAILED, "another"), c5=(FAILED, "another")))) == 1
    out = capsys.readouterr().out
    assert "nothing between them can be tested; the culprit is one of:" in out
    assert all(f"change {number}" in out for number in (4, 5, 6))


BAD_ENDS = [
    (but(c0=(FAILED, "it is broken#1")), {}, "not good: .* fails like the bad end"),
    (but(c0=(FAILED, "another")), {}, "untestable: .* does not show the failure: another"),
    (but(c0=(MISSING, "no row a")), {}, "untestable: .* does not show the failure: no row a"),
    (but(c8=(PASSED, "")), {}, "not bad: .* did not fail in 30 runs"),
    (truth, {"signature": "another"}, "untestable: .* does not show the failure: it is broken"),
]


@pytest.mark.parametrize(("says", "more", "message"), BAD_ENDS)
def test_ends_that_will_not_do_are_named_with_what_was_seen(
    ask: Ask, says: Callable[[int, str], Kind], more: dict[str, object], message: str, capsys: Capture
) -> None:
    assert ask(Runs(says), **more) == 2
    assert re.search(message, capsys.readouterr().out)


def test_images_are_searched_with_one_commit_and_a_search_goes_on(repo: Path, ask: Ask, capsys: Capture) -> None:
    contained = "runs-on: self-hosted\n    container: {image: 'slime:latest'}"
    (repo / ".github/workflows/pr-test.yml").write_text(WORKFLOW.replace("runs-on: [self-hosted, cpu]", contained))
    git(repo, "commit", "-qam", "another workflow")
    (repo / "images.txt").write_text("\n".join(IMAGES))
    whole, first, rest = Runs(truth), Runs(truth), Runs(truth)
    first.stop_after = 4
    asked: dict[str, Any] = {"axis": "image", "images": str(repo / "images.txt"), "good": None, "bad": None}
    assert (ask(first, **asked), ask(rest, **asked)) == (130, 0)
    out = capsys.readouterr().out
    assert ask(whole, fresh=True, **asked) == 0
    assert len(first.requests) + len(rest.requests) == len(whole.requests)
    assert {sha for _, sha, _ in whole.ran} == {git(repo, "rev-parse", "HEAD")}
    assert all(image == IMAGES[position] for position, _, image in whole.ran)
    assert f"8 images after slime@sha256:{'0' * 12} (good)" in out and f"the culprit: {IMAGES[CULPRIT]}\n" in out


@pytest.mark.parametrize("text", ["a,b,a", "a", ","])
def test_a_list_that_gives_no_two_ends_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--images takes two different images or more"):
        images_of(text)


AXES = [
    ({"axis": "env", "good": "a"}, "invalid value 'env' for --axis"),
    ({}, "bisect needs --good"),
    ({"axis": "image", "good": "a:1"}, "bisect needs --images"),
    ({"axis": "image", "images": "a,b", "bad": "b"}, "cannot be combined"),
    ({"good": "a", "images": "a,b"}, "cannot be combined"),
    ({"good": "a", "rev": "b"}, "--rev and --axis commit cannot"),
    ({"axis": "submodule:x", "good": "a", "images": "a,b"}, "cannot be combined"),
]


@pytest.mark.parametrize(("options", "message"), AXES)
def test_an_axis_takes_its_own_options_only(options: dict[str, Any], message: str, capsys: Capture) -> None:
    assert run_command("bisect", label="ckpt", only="row", **options) == 2
    assert message in capsys.readouterr().err
