"""How far a download is, as a person sees it."""

from __future__ import annotations

import io

from ci_tasks.flows.transfers import Shown
from ci_tasks.report.prefetch import Line

MODEL = Line(
    kind="model",
    id="org/m",
    revision="main",
    commit="c0ffee" + "0" * 34,
    path="/root/models/m",
    directory="/data/models/m",
    state="partly",
    size=3_000_000_000,
    missing=1_200_000_000,
    gated="",
    private=False,
    mount="/data",
    rows=("a", "b"),
    where=("tests/test_a.py:4", "tests/test_b.py:5"),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_changes_and_elsewhere_few_are_written() -> None:
    for out, lines in ((io.StringIO(), 2), (Terminal(), 1)):
        times = iter(range(100))
        with Shown(out, clock=lambda times=times: next(times) / 2) as shown:  # type: ignore[misc]
            for done in range(11):
                shown.progress(MODEL, {"done": done * 10**8, "total": 10**9, "loaded": done * 10**8})
        said = out.getvalue()
        assert said.count("\n") == lines
        assert "1.0 GB of 1.0 GB (100 %)" in said.splitlines()[-1]


def test_a_wait_and_the_hubs_wishes_are_told() -> None:
    out = io.StringIO()
    with Shown(out) as shown:
        shown.progress(MODEL, {"waits": True})
        shown.progress(MODEL, {"note": "the hub answers no more; waiting 7 s"})
    assert out.getvalue() == ("org/m: another fetches it; waiting\norg/m: the hub answers no more; waiting 7 s\n")
