"""The page as text: its parts, what hostile words become in it, and that it asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ci_tasks.agent.records import Event, GpuProcessSample, GpuSample
from ci_tasks.logs.reading import Series
from ci_tasks.records import GpuUse, ProbeSummary, RunRecord
from ci_tasks.report.page import MOST_LINES, Bar, Run, gpu_charts, metric_charts, page, phases, timeline
from ci_tasks.report.results import NextStep
from tests.parts.golden import Golden
from tests.report import test_markdown
from tests.report.test_markdown import TRIAGE

whole = (kept := Golden(Path(__file__).parent / "charts.json")).fixture()
gpu_charts = kept.of(gpu_charts)
metric_charts = kept.of(metric_charts)
timeline = kept.of(timeline)
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


LOSS = Series("train", "train/loss", (((0, 1.0), (1, 0.5)),))
GPU = [GpuSample(1000.0 + at, 0, "GPU-a", used=1024 * at) for at in range(3)]


def failed_and_passed() -> tuple[str, Reader]:
    log = [b"one\nOutOfMemoryError: no room\n"]
    runs = [
        Run(record("ok"), log=[b"ok\n"]),
        Run(
            record("ppo[a]", "failed", triage=TRIAGE, reason="OutOfMemoryError: no room"),
            Bar("ppo[a]", "failed", "b", "h100a", 0, 9, 3, (0, 1)),
            [("here", LOSS)],
            log,
            {"GPU-a": GPU},
        ),
        Run(record("never", "blocked", started_at=None, timings={"seconds": None}, gpu_ids=[], reason="no GPU")),
        Run(record("ppo[b]", "failed", triage=TRIAGE), log=log),
    ]
    steps = [NextStep("ci-tasks doctor --host h100a", "Check what the host lacks.")]
    text = "".join(page("my run", runs, made="Made today.", steps=steps))
    return text, Reader(text)


def test_what_failed_stands_first_once_with_its_context_and_every_row_leads_to_its_log() -> None:
    text, reader = failed_and_passed()
    assert "".join(reader.texts_of("h1")).strip() == "2 of 4 rows failed, 1 was blocked, 1 passed"
    assert reader.texts_of("title")[:1] == ["2 of 4 rows failed, 1 was blocked, 1 passed – my run"]
    assert [heading.strip() for heading in reader.texts_of("h2") if heading.strip()] == [
        *("ppo[a] and 1 more", "never", "Next", "Rows", "GPUs over time", "Timeline", "Metrics over steps"),
        *("Different from CI", "Environment", "Logs"),
    ]
    assert text.count("eeeeeee + 1 changed file") == 2, "in the summary and in the environment, of a commit that exists"
    assert "cccccccc" not in text


def test_a_row_without_gpus_says_nothing_of_them() -> None:
    machine = {"gpus": [{"index": 0, "uuid": "u", "name": "H100", "memory": "80"}], "driver": "550.1"}
    text = "".join(page("t", [Run(record("cpu", gpus=0, gpu_ids=[], environment=machine))]))
    assert not [word for word in ("GPU", "H100", "550.1") if word in text.partition("</style>")[2]]


def test_of_a_long_log_the_last_lines_are_shown_with_their_numbers() -> None:
    lines = [b"line %d\r\x1b[31mshown last %d\n" % (at, at) for at in range(1, 50_001)]
    log = [*lines, b"x" * 100_000 + b"\n", b"end"]
    text = "".join(page("t", [Run(record("a"), log=log)]))
    shown = text[text.index("<pre id=") : text.index("</pre>")].splitlines()[1:]
    assert shown[0] == f"… {50_002 - MOST_LINES:,} lines before: `ci-tasks logs RUN --raw` prints the whole log …"
    assert shown[1] == f"  {50_003 - MOST_LINES} shown last {50_003 - MOST_LINES}"
    assert len(shown) == MOST_LINES + 1
    assert shown[-2:] == [f"  50001 {'x' * 1000} … cut", "  50002 end"]


def test_no_path_of_this_machine_and_no_user_is_in_the_page() -> None:
    checkout = {"path": "/home/anna/slime", "commit": "c" * 40, "tree": "d" * 40}
    differs = {"what": "code", "ci": "merge", "here": "/home/anna/slime/x", "why": "anna@h100a, /root/y"}
    log = [b"in /home/bob/z of anna\n", b"Obtaining file:///srv/ours/runs/b/01/workspace\n"]
    runs = [Run(record("a", checkout=checkout, deviations=[differs]), log=log)]
    text = "".join(page("t", runs, places={"/srv/ours": "$CI_TASKS_HOME"}))
    assert "slime/x" in text and "USER@h100a, /root/y" in text and "in ~/z of USER" in text
    assert "Obtaining file://$CI_TASKS_HOME/runs/b/01/workspace" in text
    assert not [word for word in ("/home", "/srv", "anna", "bob") if word in text]


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
    assert all(element.get("tabindex") == "0" and element.get("aria-label") for element in reader.of("pre"))


def test_a_row_that_goes_on_has_not_failed() -> None:
    going = record("a", "running", timings={"seconds": None})
    reader = Reader("".join(page("t", [Run(going)])))
    assert "".join(reader.texts_of("h1")).strip() == "a is running"
    assert not reader.of("article")


def test_hostile_words_anywhere_stay_words() -> None:
    triage = {
        **TRIAGE, "line": HOSTILE, "text": HOSTILE, "context": [HOSTILE], "signature": HOSTILE, "frames": [HOSTILE],
    }  # fmt: skip
    deviation = dict.fromkeys(("what", "ci", "here", "why"), HOSTILE)
    checkout = {"path": HOSTILE, "commit": HOSTILE, "tree": HOSTILE, "dirty": [HOSTILE], "sample": False}
    environment = {
        **dict.fromkeys(("runtime", "image", "driver", "python"), HOSTILE),
        "packages": {HOSTILE: HOSTILE},
        "gpus": [{"index": 0, "uuid": HOSTILE, "name": HOSTILE, "memory": HOSTILE}],
        "containers": [{"name": HOSTILE, "image": HOSTILE, "digests": [HOSTILE]}],
    }
    odd = record(
        HOSTILE, "failed", id=HOSTILE, host=HOSTILE, reason=HOSTILE, triage=triage, deviations=[deviation],
        checkout=checkout, environment=environment, started_at=HOSTILE,
    )  # fmt: skip
    series = [(HOSTILE, Series(HOSTILE, HOSTILE, (((0, 1.0),),)))]
    log = [HOSTILE.encode()]
    bar = Bar(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 0, 900, 1, (0,), [(2, HOSTILE)])
    runs = [Run(odd, bar, series, log, {HOSTILE: GPU}), Run(replace(odd, status=HOSTILE))]
    text = "".join(page(HOSTILE, runs, HOSTILE))
    reader = Reader(text)
    assert not reader.of("img")
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]
    plain = "".join(text for _, text in reader.texts)
    assert "\x1b" not in text and "\u202e" not in text
    assert "</script><img src=x" in plain
    assert not reader.of("script")


def test_the_policy_forbids_every_request_and_every_script_and_every_style_but_our_own() -> None:
    text, reader = failed_and_passed()
    (policy,) = [str(element["content"]) for element in reader.of("meta") if element.get("http-equiv")]
    assert "default-src 'none'" in policy and "script-src" not in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?:", policy)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in policy
    assert not [value for _, element in reader.elements for name, value in element.items() if name == "src"]
    assert not [element for _, element in reader.elements if "style" in element], "the policy would drop it"


def test_logs_are_read_one_after_another_while_the_page_is_written() -> None:
    read: list[str] = []

    def pieces(name: str) -> Any:
        read.append(name)
        yield b"x\n"

    runs = [Run(record(name), log=pieces(name)) for name in ("a", "b")]
    written = page("t", runs)
    for part in written:
        if part == "      1 x\n":
            break
    assert read == ["a"]
    assert "".join(written).count("      1 x\n") == 1


def test_a_failure_says_who_held_the_memory_and_lists_the_exceptions_that_the_probe_saw() -> None:
    use = GpuUse(fullest="GPU 1 used most memory at 10:32:10 UTC: others 70 GiB, of 140 GiB")
    probe = ProbeSummary(exceptions=(f"pid 7: {HOSTILE}",))
    text = "".join(page("b", [Run(replace(record("ppo", "failed", triage=TRIAGE), gpu_use=use, probe=probe))]))
    article = text[text.index("<article") : text.index("</article>")]
    assert "<dt>GPU memory</dt><dd>ppo: GPU 1 used most memory at 10:32:10 UTC: others 70 GiB" in article
    assert "<dt>uncaught</dt><dd>" in article and HOSTILE not in article


ONE = GpuSample(1000.0, 3, "GPU-d", used=10240, utilization=50.0, watts=400.0)


def test_each_quantity_that_was_seen_is_a_chart_with_few_points_and_short_peaks_stay() -> None:
    samples = [replace(ONE, t=1000.0 + at, used=20480 if at == 777 else 10240) for at in range(5000)]
    charts = gpu_charts({"GPU-d": samples})
    assert [chart.title for chart in charts] == ["Memory in use, GiB", "Utilization, %", "Power, W"]
    assert gpu_charts({}) == []


def test_the_memory_of_other_processes_is_a_chart_of_its_own() -> None:
    theirs = replace(ONE, t=1001.0, processes=(GpuProcessSample(7, 9216, "other"),))
    titles = [chart.title for chart in gpu_charts({"GPU-d": [ONE, theirs, replace(theirs, t=1002.0)]})]
    assert titles[:2] == ["Memory in use, GiB", "Memory of other processes, GiB"]


def test_a_metric_has_a_line_a_source_that_breaks_where_a_value_is_no_number() -> None:
    ours = Series("train", "loss", (((0, 4.0), (1, 2.0), (2, math.nan), (3, 0.0)),))
    ci = Series("train", "loss", (((0, 4.0), (3, 1.0)),))
    metric_charts([("here", ours), ("CI", ci)])
    (odd,) = metric_charts([("here", Series("train", "loss", (((5, math.inf),),)))])
    assert (odd.lines[0].pieces, odd.lines[0].words) == ([], "here: ∞ at step 5")
    metric_charts([("here", replace(ci, parts=(*ci.parts, *ci.parts)))])


def bar(row: str, began: float, ended: float, **more: Any) -> Bar:
    return Bar(**{"row": row, "status": "passed", "batch": "b", "host": "h", "began": began, "ended": ended, **more})


def test_rows_are_drawn_in_the_order_of_their_starts_with_the_wait_before() -> None:
    happened = [Event(1100, "waiting"), Event(1150, "gpus"), *(Event(1151 + at, "step", "Execute") for at in (0, 1))]
    later = bar("later", 1100, 1200, held=1150, gpus=(0, 1), phases=phases(happened))
    other = bar("other", 5, 5, batch="a")
    drawn = timeline([later, bar("first", 1000, 1100), other])
    assert drawn[2].words.endswith("; has its GPUs at 2 min 30 s; step Execute at 2 min 31 s"), drawn[2].words
