"""A coverage map for people: Markdown for an issue, and a page that needs nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from ci_tasks.model import Row
from ci_tasks.report import coverage as report
from ci_tasks.report import coverage_diff, coverage_page
from ci_tasks.suites.coverage.coverage import Coverage, labels
from ci_tasks.suites.coverage.diff import difference
from ci_tasks.suites.coverage.gaps import gaps

SOURCE = """
import slime.utils.external_utils.command_utils as U
MODEL_NAME = "Some|<b>1B</b>*"
U.execute_train("--ci-test --colocate", 8, None)
assert U.done(), "nothing <i>was</i> | written at all"
"""
FILES = {"tests/test_a.py": SOURCE}
VOID = {"meta", "input", "br"}


def covered(*args: str) -> Coverage:
    rows = [
        Row("a", "job-a", "run-a", f"a{arg}", "tests/test_a.py", arg, 8, "i:1", {}, "self-hosted", None) for arg in args
    ]
    found = labels(rows, FILES.get)
    return Coverage("owner/name at 1234", "pr-test.yml", found, gaps(found, FILES, FILES.get))


def test_markdown_has_a_table_whose_cells_hold() -> None:
    text = report.markdown(covered(""))
    (line,) = [line for line in text.splitlines() if line.startswith("| `tests/test_a.py`")]
    assert len(re.split(r"(?<!\\)\|", line)) == 6, "four cells"
    assert "Some\\|&lt;b>1B&lt;/b>\\* dense, GRPO, colocated" in line
    assert "owner/name at 1234" in text
    assert "- `tests/test_a.py`: nothing &lt;i>was&lt;/i> \\| written at all" in text


def test_ways_of_running_a_test_are_listed() -> None:
    text = report.markdown(covered("", "--x"))
    assert "`tests/test_a.py` is run 2 ways:\n\n- no arguments\n- `--x`\n" in text


def test_many_items_of_a_gap_are_folded_away() -> None:
    names = {f"tests/test_{number}.py": "" for number in range(13)}
    found = covered("")
    text = report.markdown(Coverage("", "", found.labels, gaps(found.labels, names, FILES.get)))
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
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("kind", ["map", "change"])
def test_the_page_is_whole_and_fetches_nothing(kind: str) -> None:
    found = covered("")
    changed = difference(found, covered("", "--x"))
    text = coverage_page.page(found) if kind == "map" else coverage_diff.page(changed)
    page = Page()
    page.feed(text)
    assert page.open == [] and page.fetched == []
    assert "b" not in page.tags and "i" not in page.tags, "a test's words are text"
    assert "prefers-color-scheme: dark" in text


def test_a_change_begins_with_what_is_lost() -> None:
    changed = difference(covered("", "--x"), covered(""))
    assert coverage_diff.markdown(changed).splitlines()[4:6] == ["## Rows removed (1)", ""]
    assert "The same coverage." in coverage_diff.markdown(difference(covered(""), covered("")))
