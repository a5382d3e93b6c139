"""`report` as a person uses it: one page in a real browser with a log of 100 MB, and what goes to other programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ci_tasks.agent.run_directory import RunDir
from tests import fixtures as support
from tests.parts import browser as parts_browser
from tests.parts.json_files import write_json

until = support.until
browser = parts_browser.browser

BATCH = "20260101-120000-ppo"
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\u202e\x07"
FAILING = 620_001
STEPS = b"".join(
    b"(Actor pid=7) step %d: {'train/loss': %f, 'train/kl_loss': 0.0}\n" % (s, 1 / (s + 1)) for s in range(9)
)


def keep(person: Any, number: int, row: str, status: str, log: bytes, **more: Any) -> RunDir:
    """A run that ended, as its directory tells of it."""
    run = RunDir(str(person.home / "runs" / BATCH / f"{number:02d}"))
    os.makedirs(run.path)
    began = 1_767_268_800.0 + number
    record = {
        "id": f"{BATCH}.{number:02d}",
        "label": "ppo",
        "row": row,
        "host": "h100a",
        "status": status,
        "reason": "",
        "exit_code": 0 if status == "passed" else 1,
        "started_at": "2026-01-01T12:00:00.000+00:00",
        "ended_at": "2026-01-01T12:01:00.000+00:00",
        "timings": {"seconds": 60.0},
        "checkout": {"path": "/c", "commit": "c" * 40, "tree": "d" * 40, "dirty": [], "sample": False, "rev": None},
        "gpus": 1,
        "gpu_ids": [number],
        "log": {"bytes": len(log), "sha256": None},
        "evidence": {"kind": "metrics", "tests": 0, "failures": 0, "skipped": 0, "steps": 9, "detail": ""},
        "triage": None,
        "deviations": [{"what": "code", "ci": "merge", "here": "tree", "why": "yours"}],
        "environment": {"runtime": "docker", "image": "slime:1", "packages": {"torch": "2.9"}},
        **more,
    }
    write_json(run.plan, {"id": record["id"], "row": row})
    write_json(run.status, {"state": "ended", "started_at": began, "ended_at": began + 60})
    write_json(run.record, record)
    Path(run.events).write_text(
        "".join(json.dumps({"t": began + at, "event": what}) + "\n" for at, what in ((0, "started"), (20, "gpus")))
    )
    Path(run.log).write_bytes(log)
    return run


def keep_large(person: Any) -> None:
    """A failed row with 100 MB of log, mostly the same lines again and again."""
    blame = {
        **dict.fromkeys(("line", "text"), "AssertionError: the needle"),
        "cause": "test_assertion",
        "verdict": "failed",
        "line_no": FAILING,
        "signature": "AssertionError#1",
        "confidence": 0.9,
        "context": ["before", "AssertionError: the needle"],
        "reason": "it does not hold",
        "frames": [],
        "second": None,
    }
    run = keep(person, 1, "large", "failed", b"", triage=blame, reason="AssertionError: the needle")
    some = b"".join(b"\x1b[36m(Engine pid=%d)\x1b[0m %s request %d\n" % (at, b"-" * 115, at) for at in range(1000))
    with open(run.log, "wb") as log:
        log.writelines(some for _ in range(620))
        log.write(b"AssertionError: the needle\n" + STEPS)
        log.write(b"x" * 1_000_000 + b" needle at the end of a long line\n")
        log.writelines(some for _ in range(30))
    assert os.path.getsize(run.log) > 100_000_000


class Page:
    """What a person sees of the page and does in it."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.browser = browser
        browser.get(path.as_uri())

    def find(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def script(self, text: str) -> Any:
        return self.browser.execute_script(text)

    def shows(self, text: str) -> bool:
        return text in self.find("section[aria-labelledby=logs]").text


def test_a_person_reads_a_log_of_100_mb_in_one_page_without_network(person: Any, browser: Any, tmp_path: Path) -> None:
    keep_large(person)
    keep(person, 2, HOSTILE, "passed", f"{HOSTILE}\nplain\n".encode())
    path = tmp_path / "report.html"
    assert person.ci_tasks("report", BATCH, "--html", str(path)).code == 0
    assert path.stat().st_size < 6_000_000
    page = Page(browser, path)
    shows_what_ran(page)
    finds_its_way_in_the_large_log(page)
    survives_what_logs_write(page)
    assert page.script("return performance.getEntriesByType('resource').length") == 0
    said = [entry["message"] for entry in page.browser.get_log("browser")]
    assert [message for message in said if not message.startswith("chrome://")] == [], "the browser's own pages apart"


def shows_what_ran(page: Page) -> None:
    assert [one.text for one in page.all(".cards .badge")] == ["✗ failed", "✓ passed"]
    assert len(page.all(".timeline svg")) == 2
    assert len(page.all(".chart polyline")) == 2
    assert "code" in page.find("section[aria-labelledby=deviations]").text
    assert "torch" in page.find("section[aria-labelledby=environment]").get_attribute("textContent")


def finds_its_way_in_the_large_log(page: Page) -> None:
    assert "AssertionError: the needle" in page.find("article mark").text
    assert not page.shows("(Engine pid="), "logs are closed"
    page.find('article a[href="#log-0"]').click()
    until(lambda: page.shows("650011 (Engine pid=999) ---"), "the open log")
    lines = page.script("return document.querySelector('#log-0').textContent").splitlines()
    assert lines[0] == "… 648,011 lines before: `ci-tasks logs RUN --raw` prints the whole log …"
    assert len(lines) == 2001


def survives_what_logs_write(page: Page) -> None:
    page.find('.cards a[href="#log-1"]').click()
    until(lambda: page.shows("2 plain"), "the other log")
    page_text = page.find("#log-1").text
    assert "1 </script><script>document.title='taken'</script><img" in page_text
    assert "'taken'\">\ufffd\ufffd\n      2 plain" in page_text
    assert page.browser.title.endswith(BATCH)
    assert not page.all("img")


LONG = "torch.OutOfMemoryError: CUDA out of memory. " + "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True," * 9


def keep_all_kinds(person: Any) -> None:
    """Rows of two hosts: passed, failed alike, blocked, and cancelled before they began."""
    oom = {
        "cause": "cuda_oom",
        "verdict": "failed",
        "line_no": 2,
        "signature": "oom#1",
        "confidence": 0.9,
        **dict.fromkeys(("line", "text"), LONG),
        "reason": "a GPU's memory did not hold what the job put there",
        "context": ["before", LONG],
        "frames": ["train.py:step"],
        "candidates": [{"cause": "x", "verdict": "failed", "line_no": 1, "line": LONG, "rule": ""}],
    }
    many = [f"--a-flag-of-the-container-{number}={'x' * number}" for number in range(30)]
    own = {"what": "container flags", "ci": " ".join(many), "here": "/a/long/path" * 9, "why": "no container"}
    keep(person, 1, "tiny_ckpt[save-optimizer-gpu-load-optimizer-gpu]", "failed", b"a\nb\n", triage=oom, reason=LONG)
    keep(person, 2, "tiny_ckpt[async-save]", "failed", b"a\nb\n", triage=oom, reason=LONG, host="h100b")
    keep(person, 3, "disk", "blocked", b"", reason=LONG, started_at=None, timings={"seconds": None}, deviations=[own])
    keep(person, 4, "never", "cancelled", b"", host=None, started_at=None, timings={"seconds": None})
    keep(person, 5, "ppo", "passed", STEPS, host="h100b")


def test_the_page_is_readable_on_a_phone_in_the_dark_by_ear_and_on_paper(
    person: Any, browser: Any, tmp_path: Path
) -> None:
    """axe-core, with all of its rules, finds nothing; nothing is cut off."""
    keep_all_kinds(person)
    path = tmp_path / "report.html"
    assert person.ci_tasks("report", BATCH, "--html", str(path)).code == 0
    parts_browser.assert_readable_by_all(browser, path)
    parts_browser.show(browser, path, parts_browser.PHONE, "light")
    page = Page(browser, path)
    (first, *_) = page.all(".cards tbody tr")
    assert first.size["width"] <= 390, "a row is a card"
    assert "Status" in page.script("return getComputedStyle(document.querySelector('.cards td'), '::before').content")
    assert page.find("h1").text.endswith("2 of 5 rows failed, 1 was blocked, 1 was cancelled, 1 passed")
    assert page.find("article").location["y"] < 844, "the first failure is on a phone's first screen"
    assert len(page.all("article mark")) == 1, "what two rows share stands once"
