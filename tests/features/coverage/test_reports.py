"""A coverage report for people: Markdown for an issue, and a page that needs nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ci_tasks.features.coverage.coverage import CheckoutCoverage, labels
from ci_tasks.features.coverage.diff import difference
from ci_tasks.features.coverage.gaps import gaps
from ci_tasks.features.coverage.reports import HTML, MARKDOWN, coverage_report, diff_report
from ci_tasks.features.suites.slime_helpers import HELPERS
from ci_tasks.recorder.record import LaunchRecorder
from ci_tasks.workflow.model import Row
from tests.parts import browser as parts_browser

browser = parts_browser.browser

SOURCE = """
import slime.utils.external_utils.command_utils as U
MODEL_NAME = "Some|<b>1B</b>*"
U.execute_train("--ci-test --colocate", 8, None)
assert U.done(), "nothing <i>was</i> | written at all"
"""
FILES = {"tests/test_a.py": SOURCE}
VOID = {"meta", "input", "br", "link"}


def covered(*args: str) -> CheckoutCoverage:
    rows = [
        Row("a", "job-a", "run-a", f"a{arg}", "tests/test_a.py", arg, 8, "i:1", {}, "self-hosted", None) for arg in args
    ]
    label_coverages = labels(rows, FILES.get, LaunchRecorder(HELPERS, FILES.get).record)
    return CheckoutCoverage(
        "owner/name at 1234", "pr-test.yml", label_coverages, gaps(label_coverages, FILES, FILES.get)
    )


def test_markdown_has_a_table_whose_cells_hold() -> None:
    text = coverage_report(covered(""), MARKDOWN)
    (line,) = [line for line in text.splitlines() if line.startswith("| `tests/test_a.py`")]
    assert len(re.split(r"(?<!\\)\|", line)) == 6, "four cells"
    assert "Some\\|&lt;b>1B&lt;/b>\\* dense, GRPO, colocated" in line
    assert "owner/name at 1234" in text and "(nothing was executed)" in text
    assert "- `tests/test_a.py`: nothing &lt;i>was&lt;/i> \\| written at all" in text


def test_ways_of_running_a_test_are_listed() -> None:
    text = coverage_report(covered("", "--x"), MARKDOWN)
    assert "`tests/test_a.py` is run 2 ways:\n\n- no arguments\n- `--x`\n" in text


def test_many_items_of_a_gap_are_folded_away() -> None:
    names = {f"tests/test_{number}.py": "" for number in range(13)}
    coverage = covered("")
    text = coverage_report(CheckoutCoverage("", "", coverage.labels, gaps(coverage.labels, names, FILES.get)), MARKDOWN)
    assert "### Tests in no matrix (13)" in text and "<details><summary>13</summary>\n\n- `tests/" in text


class Page(HTMLParser):
    """Tags that open and close, and addresses that would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        addresses = [str(value) for name, value in attrs if name in ("src", "href")]
        self.fetched += [address for address in addresses if not address.startswith(("#", "data:"))]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("kind", ["coverage", "diff"])
def test_the_page_is_whole_and_fetches_nothing(kind: str) -> None:
    coverage = covered("")
    changed = difference(coverage, covered("", "--x"))
    text = coverage_report(coverage, HTML) if kind == "coverage" else diff_report(changed, HTML)
    page = Page()
    page.feed(text)
    assert page.open == [] and page.fetched == []
    assert "b" not in page.tags and "i" not in page.tags, "a test's words are text"
    assert "default-src &#39;none&#39;" in text


def tables(text: str) -> list[list[list[str]]]:
    """The words of each cell, row by row, of each table."""
    rows = [re.findall(r"<tr.*?</tr>", table, re.DOTALL) for table in re.findall(r"<table.*?</table>", text, re.DOTALL)]
    cells = [[re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table] for table in rows]
    return [[[" ".join(re.sub("<[^>]*>", "", cell).split()) for cell in row] for row in table] for table in cells]


def test_the_page_begins_with_features_by_label_and_leads_from_them_to_the_gaps() -> None:
    text = coverage_report(covered("", "--x"), HTML)
    (head, *rows), *_ = tables(text)
    assert head == ["Feature", "a", "Gap"]
    assert rows[:2] == [["Algorithms"], ["GRPO", "● 2 of a with GRPO: asserts", ""]]
    assert ["multi-node training", "·none", "no row with multi-node training"] in rows
    assert '<a href="#gap-backends">no row' in text and '<details id="gap-backends"' in text
    assert "<h1>5 features in 1 label, 0 of them by smoke tests only; 4 in no row</h1>" in text


def test_the_page_is_readable_by_all_and_its_matrix_by_keyboard(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "coverage.html"
    path.write_text(coverage_report(covered("", "--x"), HTML), encoding="utf-8")
    parts_browser.assert_readable_by_all(browser, path)
    parts_browser.show(browser, path, parts_browser.WIDE, "light")

    def focused() -> str:
        return " ".join(str(browser.execute_script("return document.activeElement.textContent")).split())

    browser.find_element("css selector", ".matrix thead a").send_keys("\ue015")  # down
    assert focused() == "● 2 of a with GRPO: asserts"
    browser.switch_to.active_element.send_keys("\ue015\ue015\ue013\ue013\ue013")  # down, down, up, up, up
    assert focused() == "a"
    browser.find_element("css selector", "#filter").send_keys("nothing has these words")
    assert not browser.find_element("css selector", "div.label").is_displayed()
    assert browser.get_log("browser") == []


def test_a_change_begins_with_what_is_lost() -> None:
    changed = difference(covered("", "--x"), covered(""))
    assert diff_report(changed, MARKDOWN).splitlines()[4:6] == ["## Rows removed (1)", ""]
    assert "The same coverage." in diff_report(difference(covered(""), covered("")), MARKDOWN)
