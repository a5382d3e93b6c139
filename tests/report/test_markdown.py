"""A run as markdown: what GitHub's job summary shows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ci_tasks.agent.codec import decode
from ci_tasks.records import RunRecord
from ci_tasks.report.markdown import MOST, Public, render
from ci_tasks.report.table import cell

EVIDENCE = {"kind": "junit", "tests": 2, "failures": 0, "skipped": 0, "steps": 0, "detail": ""}
TRIAGE = {
    "cause": "cuda_oom", "verdict": "failed", "line_no": 2, "line": "OutOfMemoryError: no room",
    "text": "OutOfMemoryError: no room", "signature": "OutOfMemoryError#1", "confidence": 0.9,
    "context": ["```", "OutOfMemoryError: no room", "after"], "reason": "too little memory", "frames": ["a.py:f"],
    "second": None,
}  # fmt: skip


def record(row: str, status: str = "passed", **more: Any) -> RunRecord:
    fields = {
        "id": "b.01", "label": "l", "row": row, "status": status, "host": "h100a", "reason": "",
        "started_at": "2026-01-01T00:00:00.000+00:00", "timings": {"seconds": 4.0}, "evidence": EVIDENCE,
        "checkout": {"path": "/c", "head": "h" * 40, "commit": "c" * 40, "tree": "d" * 40, "dirty": ["a.py"]},
        "deviations": [{"what": "image", "ci": "a:latest", "here": "a@sha256:1", "why": "pinned"}], **more,
    }  # fmt: skip
    return decode(RunRecord, fields, where="a test")


def summary() -> str:
    """Verdict, table, failures, what was odd about GPUs, and differences; the golden file is screens/summary.md."""
    use = {"oddities": ["GPU 3 was throttled (power cap) for 41 s"], "strangers": [], "not_seen": ["no Xids | read"]}
    probe = {"exceptions": ["pid 7, rank 3: KeyError: 'x'"]}
    found = {"triage": TRIAGE, "reason": "OutOfMemoryError: no room", "probe": probe}
    return render("my run", [record("ok", gpu_use=use), record("ppo[a]", "failed", gpu_use=use, **found)])


CELLS = [
    ("a|b", "a&#124;b"),
    ("two\nlines", "two lines"),
    ("<img>", "&#60;img&#62;"),
    ("tiny_ckpt[async-save]", "tiny_ckpt[async-save]"),
    ("_a_ *b* `c` ~d~", "&#95;a&#95; &#42;b&#42; &#96;c&#96; &#126;d&#126;"),
    ("[text](http://x)", "[text&#93;(http://x)"),
    ("@somebody #12", "@\u200bsomebody #\u200b12"),
    (":tada: 12:30", "&#58;tada: 12:30"),
    ("\x1b[31m", "�[31m"),
    ("x" * 1000, "x" * 399 + "…"),
]


@pytest.mark.parametrize(("text", "shown"), CELLS)
def test_what_others_wrote_stays_text_in_a_cell(text: str, shown: str) -> None:
    assert cell(text) == shown


LONG = record("r", "failed", triage={**TRIAGE, "context": ["y" * 190] * 99})
GOOD = record("r")
BAD = record("bad", "failed", reason="why")


@pytest.mark.parametrize(
    ("records", "kept"),
    [
        ([replace(LONG, row=f"r{at}") for at in range(300)], "r299"),
        ([replace(GOOD, row=f"r{at}" + "x" * 300) for at in range(5000)] + [BAD], "bad"),
        ([replace(BAD, row="✓" * 300, reason="✓" * 300)] * 5000, "more rows or failures did not fit"),
    ],
    ids=["long failures", "many that passed", "many that failed"],
)
def test_a_summary_stays_below_what_github_takes(records: list[RunRecord], kept: str) -> None:
    text = render("t", records)
    assert len(text.encode()) <= MOST
    assert kept in text


def test_no_row_at_all() -> None:
    assert render("t", []).splitlines()[0] == "## No row ran"
    assert "GPUs while" not in render("my run", [record("ok")])


def test_no_path_of_this_machine_and_no_user_is_in_it() -> None:
    checkout = {"path": "/home/anna/my_slime_", "commit": "c" * 40, "tree": "d" * 40}
    why = "anna@h100a: /home/anna/x, /root/y"
    differs = {"what": "code", "ci": "merge", "here": "/home/anna/my_slime_/tests", "why": why}
    text = render("t", [record("a", checkout=checkout, deviations=[differs], reason="in /Users/bob/z, /data/root/a")])
    assert (
        "| code | merge | my_slime_/tests | USER@" in text and "~/x, /root/y" in text and "in ~/z, /data/root/a" in text
    )
    assert not [word for word in ("/home", "/Users", "anna", "bob") if word in text]


def test_directories_of_ours_and_sources_of_mounts_are_named() -> None:
    places = {"/srv/ours": "$CI_TASKS_HOME", "/srv/ours/models": "mounts[/mnt/ci]", "/users/bob": "~", "/": "?"}
    places |= {"/home/anna": "~", "/home/code": "mounts[/mnt/code]"}
    overlays = [{"name": "sglang", "path": "/srv/sglang", "commit": "c" * 40, "tree": "d" * 40}]
    checkout = {"path": "/srv/slime", "commit": "c" * 40, "tree": "d" * 40, "overlays": overlays}
    here = "/srv/ours/runs/b/01/log, /srv/ours/models/m, /srv/ours-too, /a/srv/ours"
    differs = {"what": "code", "ci": "/root/models", "here": here, "why": "--with sglang=/srv/sglang, anna@h100a"}
    text = render("t", [record("a", checkout=checkout, deviations=[differs], reason="/users/bob/x")], places)
    assert "$CI_TASKS_HOME/runs/b/01/log, mounts[/mnt/ci]/m, /srv/ours-too, /a/srv/ours |" in text
    other = "gcc -I/srv/slime/include /srv/slime.log /srv/slime. ~/srv/ours mounts[/root/m] in /users/bob."
    assert Public([record("a", checkout=checkout)], places).text(other) == (
        "gcc -Islime/include slime.log slime. ~/srv/ours mounts[/root/m] in ~."
    )
    assert "--with sglang=sglang, USER@" in text and "| ~/x |" in text and "| code | /root/models |" in text
