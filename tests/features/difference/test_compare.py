"""What differs between two runs, and what of it is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.agent.records import Checkout, ContainerState, Deviation
from ci_tasks.features.difference import compare as runs
from ci_tasks.features.difference.compare import RunSide, compare_runs, text
from ci_tasks.features.difference.values import Values, of_series
from ci_tasks.logs.reading import Series
from ci_tasks.records import RunEnvironment, RunRecord, Triage
from tests.parts.cases import named
from tests.parts.golden import Golden

whole = (kept := Golden(Path(__file__).parent / "differences.json")).fixture()
compare_runs = kept.of(compare_runs)
text = kept.of(text)


def pulled(digest: str) -> tuple[ContainerState, ...]:
    return (ContainerState(digests=(digest,)),)


CHECKOUT = Checkout(path="/none", commit="1" * 40, tree="2" * 40, head="1" * 40)
RUN = RunRecord(
    id="old",
    label="ckpt",
    row="row",
    host="h100a",
    status="passed",
    exit_code=0,
    started_at="2026-01-01T00:00:00+00:00",
    ended_at=None,
    checkout=CHECKOUT,
    environment=RunEnvironment(containers=pulled("trainer@sha256:aa"), packages={"torch": "2.8.0"}, driver="550.54"),
    deviations=(Deviation("network", "host", "bridge", "hosts.yaml"),),
)
TRIAGE = Triage("assertion", "failed", 7, "AssertionError: reward", "sig", 0.9)


class Side(RunSide):
    """A side with variables and a curve of its own."""

    def __init__(self, env: Any = None, points: Any = (), **changes: Any) -> None:
        super().__init__(replace(RUN, **changes), None, "/nowhere")
        vars(self).update(env=env or {}, points=points)

    def inputs(self) -> dict[str, Mapping[str, str]]:
        return {**super().inputs(), "env": vars(self)["env"]}

    @property
    def logged(self) -> Values:
        return of_series([Series("reward", "reward", (vars(self)["points"],))])


def found(new: Side, old: Side | None = None) -> list[tuple[str, str, str, str]]:
    result = compare_runs(old or Side(), new)
    return [(each.axis, each.name, each.old, each.new) for each in (*result.inputs, *result.outputs)]


ENVIRONMENT = RUN.environment
CASES: list[tuple[dict[str, object], list[tuple[str, str, str, str]]]] = [
    ({}, []),
    ({"environment": replace(ENVIRONMENT, packages={"torch": "2.9.0"})}, [("packages", "torch", "2.8.0", "2.9.0")]),
    ({"environment": replace(ENVIRONMENT, containers=pulled("mirror/trainer:0101@sha256:aa"))}, []),
    (
        {"environment": replace(ENVIRONMENT, containers=pulled("trainer@sha256:bb")), "host": "h100b"},
        [("image", "image", "trainer@sha256:aa", "trainer@sha256:bb"), ("machine", "host", "h100a", "h100b")],
    ),
    ({"deviations": ()}, [("deviations", "network", "bridge", "–")]),
    ({"status": "failed", "triage": TRIAGE},
     [("status", "status", "passed", "failed"), ("failure", "failure", "–", "AssertionError: reward")]),
    ({"timings": replace(RUN.timings, seconds=9.0)}, []),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "differences"), CASES)
def test_what_differs_is_named(changes: dict[str, object], differences: list[tuple[str, str, str, str]]) -> None:
    assert found(Side(**changes)) == differences


def test_an_axis_that_a_side_did_not_note_is_not_seen() -> None:
    new = Side(environment=replace(ENVIRONMENT, containers=()))
    result = compare_runs(Side(), new)
    assert "image" in result.not_seen and "image" not in result.same and "packages" in result.same


SECRETS = [
    ({"MY_API_KEY": "one-1f2e"}, {"MY_API_KEY": "two-3d4c"}, ("***", "***, another value")),
    ({"HF_TOKEN": "one-1f2e"}, {}, ("***", "–")),
    ({}, {"DB": "postgres://user:two-3d4c@host/db"}, ("–", "***")),
    ({"LAYERS": "2"}, {"LAYERS": "3"}, ("2", "3")),
    ({"RUN": "/runs/old/x"}, {"RUN": "/runs/old/y"}, ("/runs/old/x", "/runs/old/y")),
]


@pytest.mark.parametrize(("old", "new", "shown"), SECRETS)
def test_a_value_that_may_be_a_secret_is_never_shown(
    old: Mapping[str, str], new: Mapping[str, str], shown: tuple[str, str]
) -> None:
    ((_, _, *values),) = found(Side(new), Side(old))
    assert tuple(values) == shown


CURVES = [
    ("equal, also where both are not a number", [(1, 0.5), (2, math.nan)], [(1, 0.5), (2, math.nan)], None),
    ("one ULP", [(1, 0.5), (2, 0.7)], [(1, 0.5), (2, math.nextafter(0.7, 1))], 2),
    ("steps that one side lacks", [(1, 0.5), (2, 0.7)], [(2, 0.7), (3, 9.0)], None),
    ("from a step on", [(1, 1.0), (2, 2.0), (3, 3.0)], [(1, 1.0), (2, 2.1), (3, 6.0)], 2),
]


@named(("old", "new", "step"), CURVES)
def test_metrics_diverge_at_a_step(
    old: list[tuple[int, float]], new: list[tuple[int, float]], step: int | None
) -> None:
    first, second = (Side(points=tuple(points)) for points in (old, new))
    result = compare_runs(first, second)
    assert any(f"reward from step {step}" in line for line in text(first, second, result)) is (step is not None)


NEW = {"id": "new", "status": "failed", "checkout": replace(CHECKOUT, commit="3" * 40, head="3" * 40)}
OPTIONS = "ckpt --only row --host h100a"
STEPS = [
    ("it broke", {}, {}, f"ci-tasks bisect {OPTIONS} --good {'1' * 40} --bad {'3' * 40}"),
    ("uncommitted changes", {}, {"checkout": replace(CHECKOUT, head="3" * 40, dirty=("a.py",))},
     f"ci-tasks compare {OPTIONS} --base {'1' * 40}"),
    ("it was mended", {"status": "failed"}, {"status": "passed"}, ""),
    ("blocked", {}, {"status": "blocked"}, ""),
    ("another row", {"row": "other"}, {}, ""),
    ("a label that would be an option", {"label": "--x"}, {"label": "--x"}, ""),
    ("a head that is no hash", {"checkout": replace(CHECKOUT, head="--output=x")}, {}, ""),
]  # fmt: skip


@named(("old", "new", "command"), STEPS)
def test_a_search_is_proposed_if_one_run_passed_and_the_other_failed(
    old: dict[str, object], new: dict[str, object], command: str
) -> None:
    assert compare_runs(Side(**old), Side(**{**NEW, **new})).next_step == command


def test_what_a_record_says_breaks_no_line() -> None:
    evil = "x\x1b[2J\r\n## `$(id)`"
    old, new = Side(host=evil), Side(**{**NEW, "id": evil, "host": evil, "row": "row"}, env={evil: evil})
    lines = text(old, new, compare_runs(old, new))
    assert all(line.isprintable() for line in lines) and not any(line.startswith("## ") for line in lines)
    assert any("--host 'x" in line for line in lines), "a command quotes what a record says"


def test_the_last_run_that_passed_before_it_is_the_other_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times = {"later": "2026-01-03", "asked": "2026-01-02", "before": "2026-01-01"}
    monkeypatch.setattr(runs, "passed_runs", lambda label, row, most: [tmp_path / name for name in times])
    monkeypatch.setattr(runs, "load_record", lambda run: replace(RUN, id=run.name, started_at=times[run.name]))
    monkeypatch.setattr(runs, "_side", lambda run: run.name)
    assert str(runs.last_passed(Side(id="asked", started_at="2026-01-02"))) == "before"
