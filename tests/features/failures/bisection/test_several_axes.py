"""Which axes are searched, in which order, between which ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ci_tasks.agent.records import ContainerState
from ci_tasks.config import Config
from ci_tasks.errors import UsageError
from ci_tasks.features.difference.result import InputDifference, LikelyCause, RunDifference
from ci_tasks.features.failures.bisection import several_axes
from ci_tasks.features.failures.bisection.bisection import FOUND, BisectionResult
from ci_tasks.features.failures.bisection.several_axes import RunEnds, bisect_axes
from ci_tasks.features.failures.command import bisect
from ci_tasks.features.failures.options import BisectOptions
from ci_tasks.records import Checkout, RunEnvironment, RunRecord

OPTIONS = BisectOptions(label="ckpt", only="row", good="v1", bad="v2")
IDS = ("20261101-000000-ckpt.01", "20261102-000000-ckpt.01")


def record(id: str, letter: str, dirty: tuple[str, ...] = ()) -> RunRecord:
    container = ContainerState("c", digests=(f"trainer@sha256:{letter}",))
    checkout = Checkout(path="/x", head=letter * 40, commit=letter * 40, dirty=dirty)
    return RunRecord(
        id, "ckpt", "row", "h", "passed", checkout=checkout, environment=RunEnvironment(containers=(container,))
    )


ENDS = RunEnds(record(IDS[0], "a"), record(IDS[1], "b"))
IMAGES = [f"trainer@sha256:{letter}" for letter in "ab"]
OF_RUNS: list[tuple[str, dict[str, object]]] = [
    ("commit", {"good": "a" * 40, "bad": "b" * 40, "rev": None, "image": IMAGES[1]}),
    ("submodule:lib", {"good": "a" * 40, "bad": "b" * 40, "rev": "b" * 40, "image": IMAGES[1]}),
    ("image", {"good": None, "bad": None, "rev": "b" * 40, "image": None, "images": ",".join(IMAGES)}),
    ("env", {"good": IDS[0], "bad": IDS[1], "rev": "b" * 40, "image": IMAGES[1]}),
]


@pytest.mark.parametrize(("axis", "expected"), OF_RUNS, ids=[case[0] for case in OF_RUNS])
def test_two_runs_are_the_ends_of_every_axis_and_all_else_is_the_bad_ones(
    axis: str, expected: dict[str, object]
) -> None:
    options = ENDS.options(OPTIONS, axis)
    assert options.axis == axis
    assert {name: getattr(options, name) for name in expected} == expected


def test_a_run_of_uncommitted_changes_is_no_end_of_commits() -> None:
    ends = replace(ENDS, bad=record(IDS[1], "b", dirty=("a.py",)))
    with pytest.raises(UsageError, match="did not run a commit as it is"):
        ends.options(OPTIONS, "commit")
    assert ends.options(OPTIONS, "env").rev is None


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[BisectOptions], BisectionResult]]:
    """The options of each bisection, and the result; that of the axis `culprit` has one."""

    def run(axes: list[str], culprit: str, options: BisectOptions) -> tuple[list[BisectOptions], BisectionResult]:
        asked: list[BisectOptions] = []

        def bisect(options: BisectOptions, *_: object) -> BisectionResult:
            asked.append(options)
            if options.axis != culprit:
                raise UsageError(f"{options.axis} is not it")
            return BisectionResult(FOUND, 0, (), 1)

        monkeypatch.setattr(several_axes, "bisect", bisect)
        monkeypatch.setattr(
            several_axes, "_run", lambda name, *_: dict(zip(IDS, (ENDS.good, ENDS.bad), strict=True))[name]
        )
        return asked, bisect_axes(axes, options, ("h",), Config({}, {}, ()))

    return run


def test_axes_are_searched_in_the_order_given_until_one_has_the_culprit(search: Any) -> None:
    options = replace(OPTIONS, images="x,y", first_parent=True, rev="r")
    asked, result = search(["commit", "image", "overlay:o", "env"], "overlay:o", options)
    assert [each.axis for each in asked] == ["commit", "image", "overlay:o"] and result.result == FOUND
    assert [(each.rev, each.images, each.good, each.first_parent) for each in asked] == [
        (None, None, "v1", True),
        ("r", "x,y", None, False),
        ("r", None, "v1", True),
    ]


def test_where_no_axis_has_it_the_reason_of_each_is_said(search: Any) -> None:
    with pytest.raises(UsageError, match="none of the axes commit, env has the culprit") as caught:
        search(["commit", "env"], "", OPTIONS)
    assert caught.value.hint == "why:\ncommit: commit is not it\nenv: env is not it"


def test_the_axes_that_diff_proposes_are_searched_in_its_order(
    search: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    causes = tuple(LikelyCause(axis, "", "") for axis in ("packages", "driver", "commit"))
    difference = RunDifference(*IDS, inputs=(InputDifference("driver", "driver", "1", "2"),), causes=causes)
    monkeypatch.setattr(several_axes, "diff_runs", lambda *_: type("Both", (), {"difference": difference}))
    asked, _ = search(["diff"], "commit", replace(OPTIONS, good=IDS[0], bad=IDS[1]))
    assert [each.axis for each in asked] == ["packages", "commit"]
    assert "differ in what is not searched, too: driver" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"axis": "comit"}, "invalid value 'comit' for --axis"),
        ({"axis": "commit,nothing"}, "invalid value 'nothing' for --axis"),
        ({"axis": ","}, "invalid value ',' for --axis"),
        ({"axis": "commit,env,commit"}, "--axis names commit twice"),
        ({"axis": "diff,commit"}, "bisect needs --good RUN and --bad RUN"),
        ({"axis": "diff"}, "--axis diff needs two runs"),
        ({"axis": "env", "bad": None}, "bisect needs --good and --bad"),
        ({"axis": "env", "images": "a,b"}, "--images and --axis env cannot be combined"),
        ({"axis": "packages", "no_probe": True}, "--no-probe and --axis packages cannot be combined"),
        ({"metric": "loss"}, "--metric and --worse need each other"),
        ({"metric": "loss", "worse": "x"}, "--worse takes a share above 0"),
        ({"metric": "loss", "worse": "5%", "host": "a,b"}, "--metric is for one host"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_runs(more: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        bisect(replace(OPTIONS, **more))
    assert message in caught.value.message
