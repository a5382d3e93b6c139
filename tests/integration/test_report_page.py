"""`report --html` in a real browser: without network, whatever logs hold, and readable by all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ci_tasks.agent.run_directory import RunDir
from tests.fixtures import until
from tests.parts import browser as parts_browser
from tests.parts.json_files import write_json

browser = parts_browser.browser

BATCH = "20260101-120000-ppo"
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\u202e\x07"
LONG = "torch.OutOfMemoryError: CUDA out of memory. " + "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True," * 9
STEPS = b"".join(
    b"(Actor pid=7) step %d: {'train/loss': %f, 'train/kl_loss': 0.0}\n" % (s, 1 / (s + 1)) for s in range(9)
)
LARGE = b"".join(b"\x1b[36m(Engine pid=%d)\x1b[0m request %d\n" % (at, at) for at in range(5000))
RECORD: dict[str, Any] = {
    "label": "ppo",
    "host": "h100a",
    "started_at": "2026-01-01T12:00:00.000+00:00",
    "ended_at": "2026-01-01T12:01:00.000+00:00",
    "timings": {"seconds": 60.0},
    "checkout": {"path": "/c", "commit": "c" * 40, "tree": "d" * 40, "dirty": [], "sample": False, "rev": None},
    "gpus": 1,
    "evidence": {"kind": "metrics", "tests": 0, "failures": 0, "skipped": 0, "steps": 9, "detail": ""},
    "environment": {"runtime": "docker", "image": "slime:1", "packages": {"torch": "2.9"}},
}
OOM = {
    **dict.fromkeys(("line", "text", "reason"), LONG),
    "cause": "cuda_oom",
    "verdict": "failed",
    "line_no": 2,
    "signature": "oom#1",
    "confidence": 0.9,
    "context": ["before", LONG],
}
OWN = {"what": "container flags", "ci": "--a-flag=x " * 30, "here": "/a/long/path" * 9, "why": "no container"}


def keep(person: Any, number: int, row: str, status: str, log: bytes, **more: Any) -> None:
    """A run that ended, as its directory tells of it."""
    run = RunDir(str(person.home / "runs" / BATCH / f"{number:02d}"))
    os.makedirs(run.path)
    id, began = f"{BATCH}.{number:02d}", 1_767_268_800.0 + number
    write_json(run.plan, {"id": id, "row": row})
    write_json(run.status, {"state": "ended", "started_at": began, "ended_at": began + 60})
    ended = {"id": id, "row": row, "status": status, "reason": "", "exit_code": int(status != "passed")}
    write_json(run.record, {**RECORD, **ended, "log": {"bytes": len(log), "sha256": None}, **more})
    Path(run.log).write_bytes(log)


def keep_all_kinds(person: Any) -> None:
    """Rows of two hosts: failed alike, blocked, cancelled before they began, and passed."""
    failed: dict[str, Any] = {"triage": OOM, "reason": LONG}
    began_not: dict[str, Any] = {"started_at": None, "timings": {"seconds": None}}
    keep(person, 1, "tiny_ckpt[save-optimizer-gpu-load-optimizer-gpu]", "failed", LARGE + STEPS, **failed)
    keep(person, 2, "tiny_ckpt[async-save]", "failed", b"a\nb\n", host="h100b", **failed)
    keep(person, 3, "disk", "blocked", b"", reason=LONG, deviations=[OWN], **began_not)
    keep(person, 4, "never", "cancelled", b"", host=None, **began_not)
    keep(person, 5, "ppo", "passed", f"{HOSTILE}\nplain\n".encode(), host="h100b")


def find(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def find_all(browser: Any, selector: str) -> list[Any]:
    return list(browser.find_elements("css selector", selector))


def test_a_person_reads_the_page_on_any_screen_without_network(person: Any, browser: Any, tmp_path: Path) -> None:
    """axe-core, with all of its rules, finds nothing; nothing is cut off."""
    keep_all_kinds(person)
    path = tmp_path / "report.html"
    assert person.ci_tasks("report", BATCH, "--html", str(path)).code == 0
    parts_browser.assert_readable_by_all(browser, path)
    shows_the_failure_first_on_a_phone(browser, path)
    opens_logs_that_stay_text(browser, path)
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    said = [entry["message"] for entry in browser.get_log("browser")]
    assert [message for message in said if not message.startswith("chrome://")] == [], "the browser's own pages apart"


def shows_the_failure_first_on_a_phone(browser: Any, path: Path) -> None:
    parts_browser.show(browser, path, parts_browser.PHONE, "light")
    assert find_all(browser, ".cards tbody tr")[0].size["width"] <= 390, "a row is a card"
    assert find(browser, "h1").text.endswith("2 of 5 rows failed, 1 was blocked, 1 was cancelled, 1 passed")
    assert find(browser, "article").location["y"] < 844, "the first failure is on a phone's first screen"
    assert len(find_all(browser, "article mark")) == 1, "what two rows share stands once"


def opens_logs_that_stay_text(browser: Any, path: Path) -> None:
    def shows(text: str) -> bool:
        return text in find(browser, "section[aria-labelledby=logs]").text

    parts_browser.show(browser, path, parts_browser.WIDE, "light")
    assert not shows("(Engine pid="), "logs are closed"
    find(browser, 'article a[href="#log-0"]').click()
    until(lambda: shows("5000 (Engine pid=4999) request"), "the open log")
    find(browser, '.cards a[href="#log-2"]').click()
    until(lambda: shows("2 plain"), "the other log")
    assert "1 </script><script>document.title='taken'</script><img" in find(browser, "#log-2").text
    assert browser.title.endswith(BATCH)
    assert not find_all(browser, "img")
