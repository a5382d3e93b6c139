"""After `clean`, what is left under our directories is said, to the last entry."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ci_tasks.agent.records import QueryAnswer
from ci_tasks.hosts.queries import LocalQueryRunner
from ci_tasks.run.disk_usage import describe_usage


class FixedAnswer:
    def __init__(self, answer: QueryAnswer) -> None:
        self.answer = answer

    def run_queries(self, questions: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        return dict.fromkeys(questions, self.answer)


def test_each_entry_is_named_the_largest_first(tmp_path: Path) -> None:
    for name, size in {"runs/1/01/log": 3 << 20, "sync/objects": 5 << 20, ".of somebody": 1 << 20}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(os.urandom(size))
    head, *entries = describe_usage(LocalQueryRunner(), str(tmp_path))
    assert head == f"still in {tmp_path}: 9.0 MiB"
    assert [entry.split(":")[0] for entry in entries] == [
        "    5.0 MiB  sync",
        "    3.0 MiB  runs",
        "    1.0 MiB  .of somebody",
    ]


def test_the_home_directory_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ci-tasks").mkdir()
    assert describe_usage(LocalQueryRunner(), "~/.ci-tasks")[0].startswith(f"still in {tmp_path}/.ci-tasks: ")


def test_where_there_is_no_directory_nothing_is_said(tmp_path: Path) -> None:
    assert describe_usage(LocalQueryRunner(), str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            QueryAnswer(1, "8\t/w/runs\n12\t/w\n", "du: cannot read"),
            "still in /w: 12 KiB; some of it could not be read",
        ),
        (QueryAnswer(127, "", "sh: du:\n not found"), "the size of /w is not known: sh: du: not found"),
        (QueryAnswer(124, "", ""), "the size of /w is not known: du ended with 124"),
        (QueryAnswer(None, "", "no answer in 120 s"), "the size of /w is not known: no answer in 120 s"),
    ],
)
def test_what_could_not_be_read_is_said(answer: QueryAnswer, line: str) -> None:
    assert describe_usage(FixedAnswer(answer), "/w")[0] == line
