"""What is learned of a row's runs, which values do not fit, where a mean changed, and where two runs part."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ci_tasks.agent.codec import encode
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.errors import UsageError
from ci_tasks.features.numbers import read_numbers
from ci_tasks.features.numbers import row_numbers as module
from ci_tasks.features.numbers.bands import LEAST_RUNS, MOST_STEPS, counted, learn, marks, thinned, unseen
from ci_tasks.features.numbers.bands_file import accept, own_file, read_bands, write_bands
from ci_tasks.features.numbers.check_run import check_run
from ci_tasks.features.numbers.drift import drifts
from ci_tasks.features.numbers.exact import compare_exactly, lines_by_rank
from ci_tasks.features.numbers.read_numbers import numbers_of
from ci_tasks.features.numbers.report import exact_text, text
from ci_tasks.features.numbers.result import (
    Acceptance,
    Band,
    BandsFile,
    ExactComparison,
    MetricPoint,
    Parting,
    RowNumbers,
    RunNumbers,
)
from ci_tasks.records import RunRecord
from ci_tasks.results.metrics import Points, Series, read_series
from ci_tasks.safe_output import json_document


def run(at: int, *values: float, name: str = "reward", marked: bool = False) -> RunNumbers:
    points = tuple(MetricPoint(1, step, value) for step, value in enumerate(values, 1))
    return RunNumbers(f"r{at:02d}", f"2026-01-{at + 1:02d}", "8 x H100", {name: points}, marked)


SCATTERED = [run(at, 1.0 + 0.01 * (at % 3), 2.0 + 0.01 * (at % 2)) for at in range(10)]
EQUAL = [run(at, 1.0, 2.0) for at in range(LEAST_RUNS)]
MARKS: list[tuple[str, Sequence[RunNumbers], RunNumbers, list[str]]] = [
    ("within its band", SCATTERED, run(10, 1.011, 2.004), []),
    ("too few runs to know", SCATTERED[: LEAST_RUNS - 1], run(10, 9.0, 9.0), []),
    ("a step that no run had", SCATTERED, run(10, 1.0, 2.0, 99.0), []),
    ("a metric that no run had", SCATTERED, run(10, 99.0, name="loss"), []),
    (
        "low at one step",
        SCATTERED,
        run(10, 1.01, 1.5),
        ["reward at step 2 is 95.8 sigma low (1.5; 10 runs gave 2.005)"],
    ),
    (
        "no number any more",
        SCATTERED,
        run(10, math.nan, 2.0),
        ["reward at step 1 is nan; 10 runs before gave 1.009"],
    ),
    ("values whose sum is infinite", [run(at, 1.7e308) for at in range(9)], run(10, 1.7e308), []),
    ("equal in all runs, and now by rounding", EQUAL, run(9, 1.0 + 1e-12, 2.0), []),
    (
        "equal in all runs, and now not",
        EQUAL,
        run(9, 1.0, 2.0001),
        ["reward at step 2 is 2.0001; in all 5 runs before 2"],
    ),
]


@pytest.mark.parametrize(("before", "new", "sentences"), [case[1:] for case in MARKS], ids=[case[0] for case in MARKS])
def test_a_value_outside_of_its_band_is_marked(
    before: Sequence[RunNumbers], new: RunNumbers, sentences: list[str]
) -> None:
    assert [mark.sentence for mark in marks(new, learn(before))] == sentences


def test_where_one_run_was_far_from_the_others_all_bands_are_as_wide() -> None:
    calm, wild = [run(at, 1.0 + 0.01 * (at % 3)) for at in range(10)], run(10, 1.5)
    assert marks(run(11, 1.4), learn(calm))
    assert not marks(run(11, 1.4), learn([*calm, wild]))


def test_a_run_that_did_not_fit_counts_only_once_it_is_accepted() -> None:
    runs = [run(0, 1.0), run(1, 1.0), run(2, 5.0, marked=True), run(3, 5.0, marked=True), run(4, 1.0)]
    assert [each.id for each in counted(runs, [])] == ["r00", "r01", "r04"]
    accepted = Acceptance("l", "row", "8 x H100", "r02", "somebody", "2026-01-03T12", "a new tokenizer")
    assert [each.id for each in counted(runs, [accepted])] == ["r02", "r04"]


def test_a_long_training_is_thinned_evenly_to_its_end() -> None:
    points = [MetricPoint(1, step, 0.0) for step in range(1000)]
    steps = [point.step for point in thinned(points)]
    assert len(steps) == MOST_STEPS and (steps[0], steps[-1]) == (0, 999)


def test_a_mean_that_changed_and_stayed_so_is_found_where_it_did() -> None:
    rng = random.Random(1)
    steady = [run(at, rng.gauss(1, 0.1)) for at in range(30)]
    assert drifts(steady) == ()
    assert drifts([run(at, 1.7e308) for at in range(30)]) == ()
    (found,) = drifts([run(at, rng.gauss(1 if at < 18 else 0.5, 0.1)) for at in range(30)])
    assert (found.name, found.since, found.since_time) == ("reward", "r18", "2026-01-19")
    assert found.before == pytest.approx(1, abs=0.1) and found.after == pytest.approx(0.5, abs=0.1)


def series(*points: Points) -> tuple[Series, ...]:
    return (Series("loss", "train/loss", points),)


A, ONE_ULP = ((1, 0.5), (2, 0.7)), ((1, 0.5), (2, math.nextafter(0.7, 1)))
EXACT = [
    ("equal", {"": series(A)}, {"": series(A)}, 2, 0, None),
    (
        "a minus before a zero",
        {"": series(((1, 0.0),))},
        {"": series(((1, -0.0),))},
        1,
        0,
        Parting("train/loss", "", 1, 1, 0.0, -0.0),
    ),
    ("one trained on", {"": series(A[:1])}, {"": series(A)}, 1, 1, None),
    ("one restarted", {"": series(A)}, {"": series(A, A)}, 2, 2, None),
    ("a rank of one alone", {"": series(A)}, {"": series(A), "3": series(A)}, 2, 2, None),
    ("both not a number", {"": series(((1, math.nan),))}, {"": series(((1, math.nan),))}, 1, 0, None),
    ("one ULP", {"": series(A)}, {"": series(ONE_ULP)}, 2, 0, Parting("train/loss", "", 1, 2, 0.7, ONE_ULP[1][1])),
    (
        "the second training, after a restart",
        {"": series(A, A)},
        {"": series(A, ONE_ULP)},
        4,
        0,
        Parting("train/loss", "", 2, 2, 0.7, ONE_ULP[1][1]),
    ),
    (
        "the lowest rank of the earliest step",
        {"10": series(((1, 0.5),)), "3": series(((1, 0.5),)), "0": series(A)},
        {"10": series(((1, 0.6),)), "3": series(((1, 0.7),)), "0": series(ONE_ULP)},
        4,
        0,
        Parting("train/loss", "3", 1, 1, 0.5, 0.7),
    ),
    ("nothing in both", {"": series(A)}, {"0": series(A)}, 0, 4, None),
]


@pytest.mark.parametrize(
    ("old", "new", "compared", "unmatched", "first"), [case[1:] for case in EXACT], ids=[c[0] for c in EXACT]
)
def test_two_runs_part_at_a_step_and_rank(
    old: dict[str, tuple[Series, ...]],
    new: dict[str, tuple[Series, ...]],
    compared: int,
    unmatched: int,
    first: Parting | None,
) -> None:
    assert compare_exactly("a", old, "b", new) == ExactComparison("a", "b", compared, first, unmatched)


EXACT_TEXTS = [
    (ExactComparison("a", "b", 2), "a and b: all 2 numbers are equal, as the logs print them"),
    (
        ExactComparison("a", "b", 2, unmatched=3),
        "a and b: all 2 numbers of both are equal, as the logs print them; not seen: 3 that only one of them has",
    ),
    (
        ExactComparison("a", "b", 2, old_kind="8 x H100, image@sha256:a", new_kind="8 x H100, image@sha256:b"),
        "a and b: all 2 numbers are equal, as the logs print them; they ran on different hosts or images: "
        "8 x H100, image@sha256:a, then 8 x H100, image@sha256:b",
    ),
]


@pytest.mark.parametrize(("compared", "sentence"), EXACT_TEXTS)
def test_equal_numbers_are_said_to_be_no_more_than_was_seen(compared: ExactComparison, sentence: str) -> None:
    assert exact_text(compared) == sentence


BANDS = learn(SCATTERED)
FITS = [
    (run(10, 1.0, 2.0), ["the newest run is within all of them"]),
    (run(10, 1.0), ["the newest run is within all others", "not seen: the newest run has no value for 1 of them"]),
    (run(10, 9.0), ["not seen: the newest run has no value for 1 of them"]),
    (run(10), ["not seen: the newest run has no value for 2 of them"]),
]


@pytest.mark.parametrize(("newest", "sentences"), FITS)
def test_a_band_without_a_value_is_not_seen(newest: RunNumbers, sentences: list[str]) -> None:
    numbers = RowNumbers("l", "row", "k", 11, bands=BANDS, marks=marks(newest, BANDS), unseen=unseen(newest, BANDS))
    lines = [line.strip() for line in text([numbers])]
    assert [line for line in lines if line.startswith(("the newest run is within", "not seen"))] == sentences


def test_what_is_no_number_is_kept_and_printed_as_json(tmp_path: Path) -> None:
    """A run that passes may log NaN."""
    directory = tmp_path / "runs" / "20260101-120000-ckpt" / "01"
    directory.mkdir(parents=True)
    (directory / "log").write_text("step 1: {'train/loss': nan}\nstep 2: {'train/loss': inf}\n")
    own = RunDir(str(directory))
    record = RunRecord("20260101-120000-ckpt.01", "ckpt", "row", "h100a", "passed")
    for _ in range(2):  # read, and what was kept of it
        values = numbers_of(own, record).values["train/loss"]
        assert [str(point.value) for point in values] == ["nan", "inf"]
    (mark,) = marks(run(10, math.nan), learn(EQUAL))
    parted = compare_exactly("a", {"": series(((1, 0.5),))}, "b", {"": series(((1, -math.inf),))})
    texts = [json_document(encode(each, versioned=False)) for each in (mark, parted)]
    assert '"nan"' in texts[0] and '"-inf"' in texts[1]


def test_damaged_files_of_before_do_not_end_a_run_that_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs = [RunDir(str(tmp_path / "runs" / f"2026010{day}-120000-ckpt" / "01")) for day in (1, 2)]
    for each in runs:
        Path(each.path).mkdir(parents=True)
        Path(each.record).write_text('{"a"')
    monkeypatch.setattr(read_numbers, "runs_of_row", lambda label, row, count: runs[:1])
    record = RunRecord("20260102-120000-ckpt.01", "ckpt", "row", "h100a", "passed")
    assert check_run(runs[1], record) == () and capsys.readouterr().err == ""
    own_file().parent.mkdir(parents=True, exist_ok=True)
    own_file().write_text("<<<<<<< HEAD")
    assert check_run(runs[1], record) == ()
    assert "is not compared with earlier runs: " in capsys.readouterr().err


def test_a_change_without_any_scatter_has_no_probability() -> None:
    (found,) = drifts([run(at, 1.0 if at < 6 else 2.0) for at in range(12)])
    assert found.p == 0
    (line,) = [line for line in text([RowNumbers("l", "row", "k", 12, drifts=(found,))]) if "changed" in line]
    assert line.strip() == "reward changed at r06 (2026-01-07): 1 in every run before, 2 in every one since"


REVIEWED = RowNumbers("l", "row", "8 x H100, image@sha256:a", 5, bands=BANDS)


@pytest.mark.parametrize(
    ("kind", "bands", "not_seen"),
    [
        (REVIEWED.kind, BANDS, ""),
        ("8 x H100, image@sha256:b", (), f"bands.json has this row on: {REVIEWED.kind}"),
    ],
)
def test_bands_of_a_file_are_not_those_of_another_image(
    kind: str, bands: Sequence[Band], not_seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image moved: bands that are learned here would say that the new numbers were reviewed."""
    runs = [replace(each, kind=kind) for each in SCATTERED]
    monkeypatch.setattr(module, "passed_numbers", lambda label, row: iter(runs[::-1]))
    (row,) = module.row_numbers("l", "row", BandsFile((REVIEWED,)), "bands.json")
    assert (row.bands, row.not_seen, row.was_compared) == (bands, not_seen, bool(bands))


def test_a_change_that_was_accepted_is_no_drift_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run(at, 1.0 + 0.01 * (at % 3) + (at >= 8)) for at in range(16)]
    monkeypatch.setattr(module, "passed_numbers", lambda label, row: iter(runs[::-1]))
    accepted = Acceptance("l", "row", "8 x H100", "r08", "somebody", "2026-01-09T12", "a new tokenizer")
    for known, since in (((), ["r08"]), ((accepted,), [])):
        (row,) = module.row_numbers("l", "row", BandsFile(accepted=known))
        assert [drift.since for drift in row.drifts] == since


def test_the_exported_file_has_who_accepted_what_and_why(tmp_path: Path) -> None:
    accepted = Acceptance("l", "row", REVIEWED.kind, "r02", "somebody", "2026-01-03T12", "a new tokenizer")
    path = tmp_path / "bands.json"
    for _ in range(2):
        write_bands(path, [replace(REVIEWED, accepted=accepted)], read_bands(path, must_exist=False))
    assert read_bands(path).accepted == (accepted,)


@pytest.mark.parametrize(
    ("run_id", "why", "message"),
    [("batch", "why", "batch has 2 of them"), ("batch.01", " ", "needs --why"), ("other", "why", "not the newest")],
)
def test_one_run_is_accepted_with_a_reason(run_id: str, why: str, message: str) -> None:
    rows = [replace(REVIEWED, row=f"row{number}", newest=f"batch.0{number}") for number in (1, 2)]
    with pytest.raises(UsageError, match=message):
        accept(rows, run_id, why)


def test_a_line_is_of_the_rank_that_stands_before_it() -> None:
    lines = [b"[rank1]: step 1: {'train/loss': 0.5}\n", b"step 1: {'train/loss': 0.25}\n", b"a word\n"]
    ranks = lines_by_rank(lines)
    assert sorted(ranks) == ["", "1"]
    assert [read_series(ranks[rank])[0].parts for rank in ("", "1")] == [(((1, 0.25),),), (((1, 0.5),),)]
