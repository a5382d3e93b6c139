"""The page as text: its parts, what hostile words become in it, and that it asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from ci_tasks import resources
from ci_tasks.records import GpuUse, ProbeSummary, RunRecord
from ci_tasks.report.html.curves import CI, Curve
from ci_tasks.report.html.page import Ci, Log, Run, page
from ci_tasks.report.html.timeline import Bar
from ci_tasks.report.outcome import NextStep
from tests.report import test_markdown
from tests.report.test_live import contrast
from tests.report.test_markdown import TRIAGE

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\u202e\x1b[31m"


def record(row: str, status: str = "passed", **more: Any) -> RunRecord:
    fields = {
        "id": f"b.{row}", "gpus": 2, "gpu_ids": [0, 1],
        "checkout": {"path": "/c", "commit": "c" * 40, "tree": "d" * 40, "head": "e" * 40, "dirty": ["a.py"]},
        "environment": {"runtime": "docker", "image": "a:latest", "driver": "550.1", "packages": {"torch": "2.9"}},
    }  # fmt: skip
    return test_markdown.record(row, status, **{**fields, **more})


class Reader(HTMLParser):
    """What a browser would make of it: elements, headings, and what stands in which."""

    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def texts_of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def failed_and_passed() -> tuple[str, Reader]:
    runs = [
        Run(
            record("ppo[a]", "failed", triage=TRIAGE, reason="OutOfMemoryError: no room"),
            Bar("ppo[a]", "failed", "b", "h100a", 0, 9, 3, (0, 1)),
            [Curve("loss", "train/loss", "here", [[(0, 1.0), (1, 0.5)]])],
            Log("ppo[a]", 12, [b"one\nOutOfMemoryError: no room\n"], 2),
        ),
        Run(record("never", "blocked", started_at=None, timings={"seconds": None}, gpu_ids=[], reason="no GPU")),
        Run(record("ok"), log=Log("ok", 3, [b"ok\n"])),
        Run(record("ppo[b]", "failed", triage=TRIAGE), log=Log("ppo[b]", 12, [b"one\nOutOfMemoryError: no room\n"], 2)),
    ]
    steps = [NextStep("ci-tasks doctor --host h100a", "Check what the host lacks.")]
    text = "".join(page("my run", runs, made="Made today.", steps=steps))
    return text, Reader(text)


def test_the_commit_is_one_that_exists_and_the_changed_files_are_counted() -> None:
    text, reader = failed_and_passed()
    assert reader.texts_of("code").count("eeeeeee + 1 changed file") == 2, "in the summary and in the environment"
    assert "cccccccc" not in text


def test_the_page_answers_first_and_has_every_log() -> None:
    text, reader = failed_and_passed()
    assert "".join(reader.texts_of("h1")).strip() == "2 of 4 rows failed, 1 was blocked, 1 passed"
    assert reader.texts_of("title")[:1] == ["2 of 4 rows failed, 1 was blocked, 1 passed – my run"]
    assert reader.texts_of("h2") == [
        *("Causes", "Next", "Timeline", "Different from CI", "Failures", "Rows", "Metrics over steps"),
        *("Environment", "Logs"),
    ]
    assert "ci-tasks doctor --host h100a" in reader.texts_of("code")
    assert reader.texts_of("summary")[-3:] == ["ppo[a]", "ok", "ppo[b]"]
    assert {"#log-0-line", "#log-1", "#log-2-line"} <= {element["href"] for element in reader.of("a")}
    assert '      1 one\n<mark id="log-0-line">      2 OutOfMemoryError: no room</mark>\n' in text
    assert '<mark><span class="no">' in text
    assert len([element for element in reader.of("svg") if element.get("role") == "img"]) == 2
    assert "Made today." in reader.texts_of("footer")


def test_a_failure_of_several_rows_stands_once_and_all_of_them_lead_to_it() -> None:
    text, reader = failed_and_passed()
    assert reader.texts_of("dd").count("cuda_oom: too little memory") == 1
    assert text.count("<mark>") == 1
    assert [element["id"] for element in reader.of("article")] == ["failure-1", "failure-2"]
    assert [element["href"] for element in reader.of("a") if str(element["href"]).startswith("#failure-")] == [
        *("#failure-1", "#failure-1", "#failure-2"),  # the causes
        *("#failure-1", "#failure-2", "#failure-1"),  # the rows
    ]


def test_what_differs_everywhere_is_said_once_and_apart_from_what_does_so_on_one_host() -> None:
    def differing(row: str, host: str) -> Run:
        both, own = ({"what": what, "ci": "a", "here": "b", "why": "c"} for what in ("code", f"GPUs of {host}"))
        return Run(record(row, host=host, deviations=[both, own]))

    text = "".join(page("t", [differing("one", "h1"), differing("two", "h1"), differing("three", "h2")]))
    some, every = text.index("What differs in some rows"), text.index("What differs in every row")
    assert some < text.index("GPUs of h1") < text.index("all 2 on h1") < text.index("GPUs of h2") < every
    assert text.count(">code<") == 1 and text.index(">code<") > every


def test_links_and_labels_lead_to_elements_that_are_there_once() -> None:
    _, reader = failed_and_passed()
    ids = [value for _, attributes in reader.elements for name, value in attributes.items() if name == "id"]
    assert len(ids) == len(set(ids))
    targets = {str(element["href"])[1:] for element in reader.of("a")}
    named = {
        name
        for _, attributes in reader.elements
        for key in ("aria-labelledby", "aria-describedby")
        for name in str(attributes.get(key) or "").split()
    }
    assert targets | named <= set(ids)
    assert all(element.get("scope") in ("col", "row") for element in reader.of("th"))
    scrolling = [*reader.of("pre"), *(element for element in reader.of("div") if element.get("class") == "wide")]
    assert all(element.get("tabindex") == "0" and element.get("id", element.get("aria-label")) for element in scrolling)
    assert {"context", None} == {element.get("class") for element in reader.of("pre")}


def test_a_row_that_goes_on_has_not_failed() -> None:
    going = record("a", "running", timings={"seconds": None})
    reader = Reader("".join(page("t", [Run(going)])))
    assert "".join(reader.texts_of("h1")).strip() == "a is running"
    assert not {"Causes", "Failures"} & {*reader.texts_of("h2")}


def test_hostile_words_anywhere_stay_words() -> None:
    triage = {
        **TRIAGE, "line": HOSTILE, "text": HOSTILE, "context": [HOSTILE], "signature": HOSTILE, "frames": [HOSTILE],
    }  # fmt: skip
    deviation = dict.fromkeys(("what", "ci", "here", "why"), HOSTILE)
    checkout = {"path": HOSTILE, "commit": HOSTILE, "tree": HOSTILE, "dirty": [HOSTILE], "sample": False}
    environment = {
        **dict.fromkeys(("runtime", "image", "driver", "python", "problem"), HOSTILE),
        "packages": {HOSTILE: HOSTILE},
        "direct": {HOSTILE: {"url": HOSTILE}},
        "gpus": [{"index": 0, "uuid": HOSTILE, "name": HOSTILE, "memory": HOSTILE}],
        "docker": {"client": HOSTILE, "server": HOSTILE},
        "containers": [{**dict.fromkeys(("name", "image", "problem"), HOSTILE), "digests": [HOSTILE]}],
    }
    odd = record(
        HOSTILE, "failed", id=HOSTILE, host=HOSTILE, reason=HOSTILE, triage=triage, deviations=[deviation],
        checkout=checkout, environment=environment, started_at=HOSTILE,
    )  # fmt: skip
    curves = [Curve(HOSTILE, HOSTILE, HOSTILE, [[(0, 1.0)]])]
    log = Log(HOSTILE, 9, [HOSTILE.encode()], 1)
    bar = Bar(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 0, 900, 1, (0,), [(2, HOSTILE)])
    ci = Ci(HOSTILE, [Curve(HOSTILE, HOSTILE, CI, [[(0, 1.0)]])], log)
    text = "".join(page(HOSTILE, [Run(odd, bar, curves, log), Run(replace(odd, status=HOSTILE))], ci, HOSTILE))
    reader = Reader(text)
    assert not reader.of("img")
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]
    plain = "".join(text for tag, text in reader.texts if tag != "script")
    assert "\x1b" not in text and "\u202e" not in text
    assert "</script><img src=x" in plain
    assert len(reader.of("script")) == 1


def test_the_policy_forbids_every_request_and_every_script_but_our_own() -> None:
    text, reader = failed_and_passed()
    (policy,) = [str(element["content"]) for element in reader.of("meta") if element.get("http-equiv")]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?:", policy)
    run = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    run += re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(run) == 2
    for source in run:
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not [value for _, element in reader.elements for name, value in element.items() if name == "src"]
    assert not [element for _, element in reader.elements if "style" in element], "the policy would drop it"


def test_the_script_does_not_end_before_its_end_or_set_html() -> None:
    text = resources.text("report/html/page.js")
    assert "</" not in text
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|fetch\(|import\(", text)


def test_logs_are_read_one_after_another_while_the_page_is_written() -> None:
    read: list[str] = []

    def pieces(name: str) -> Any:
        read.append(name)
        yield b"x\n"

    runs = [Run(record(name), log=Log(name, 2, pieces(name))) for name in ("a", "b")]
    written = page("t", runs)
    for part in written:
        if part == "      1 x\n":
            break
    assert read == ["a"]
    assert "".join(written).count("      1 x\n") == 1


COLOURS = dict(re.findall(r"--([\w-]+): light-dark\(([^)]+)\)", resources.text("report/html/page.css")))
TEXT_ON = [
    *((name, "bg", 4.5) for name in ("fg", "muted", "link", "passed", "failed", "blocked", "other")),
    *((name, "panel", 4.5) for name in ("fg", "muted", "failed")),
    *((name, f"{name}-bg", 4.5) for name in ("passed", "failed", "blocked", "other")),
    *(("fg", f"{name}-bg", 4.5) for name in ("passed", "failed", "blocked", "other", "mark")),
    ("muted", "failed-bg", 4.5),
    *((name, "bg", 3.0) for name in ("border", "focus", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "ci")),
]


def test_words_and_lines_stand_out_enough_in_both_themes() -> None:
    def parts(colour: str) -> list[int]:
        return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]

    pale = []
    for text, ground, least in TEXT_ON:
        for theme, *both in zip(
            ("light", "dark"), *(COLOURS[name].split(", ") for name in (text, ground)), strict=True
        ):
            if contrast(*map(parts, both)) < least:
                pale.append(f"{text} on {ground}, {theme}")
    assert pale == []


def test_a_failure_says_who_held_the_memory_and_lists_the_exceptions_that_the_probe_saw() -> None:
    use = GpuUse(fullest="GPU 1 was fullest at 10:32:10 UTC: others 70 GiB, of 140 GiB")
    probe = ProbeSummary(exceptions=(f"pid 7: {HOSTILE}",), task_exceptions=("pid 1, task poll: OSError: gone",))
    text = "".join(page("b", [Run(replace(record("ppo", "failed", triage=TRIAGE), gpu_use=use, probe=probe))]))
    article = text[text.index("<article") : text.index("</article>")]
    assert "<strong>GPU memory</strong> of ppo: GPU 1 was fullest at 10:32:10 UTC: others 70 GiB" in article
    assert 'in a task: <code class="text">pid 1, task poll: OSError: gone</code>' in article
    assert "uncaught: <code" in article and HOSTILE not in article
