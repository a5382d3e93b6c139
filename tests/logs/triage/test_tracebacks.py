"""Tracebacks of many ranks and actors at once: whose frames are whose, what ends one, and how they are chained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.logs.lines import segments, visible
from ci_tasks.logs.triage.log_prefixes import read
from ci_tasks.logs.triage.log_triage import read_candidates
from ci_tasks.logs.triage.tracebacks import TracebackEnd, Tracebacks


def ends(log: str) -> list[TracebackEnd]:
    """The tracebacks that end in a log, in the order of their ends."""
    tracebacks = Tracebacks()
    lines = [read(number, raw.encode()) for number, raw in enumerate(log.strip("\n").split("\n"), 1)]
    parts = [tracebacks.feed(line.origin, line.text) for line in lines]
    return [part for part in parts if isinstance(part, TracebackEnd)]


def types_and_calls(log: str) -> list[list[str]]:
    """[exception's type, `file:function` of its frames …] of each."""
    return [[end.type, *(frame.rsplit("/", 1)[-1] for frame in end.traceback.frames)] for end in ends(log)]


LOGS: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("tracebacks.yaml").read_text())


@pytest.mark.parametrize("case", LOGS, ids=[case["name"] for case in LOGS])
def test_a_log_has_these_tracebacks(case: dict[str, Any]) -> None:
    assert types_and_calls(case["log"]) == case["ends"]
    chains = {end.traceback.chain for end in ends(case["log"])}
    assert (len(chains) == 1) == case.get("one_chain", False)


PLAIN = """Traceback (most recent call last):
  File "/x/run.py", line 3, in <module>
    main()
    ~~~~^^
  File "/x/app.py", line 9, in main
    raise ValueError(f"no {name}")
ValueError: no rows
"""
CALLS = ["run.py:<module>", "app.py:main"]
END = "ValueError: no rows"
INDENTED = "".join(f"      {row}\n" for row in PLAIN.splitlines())
OTHERS = ["Epoch: 3", "Done: yes", "Warning: slow", "BatchSize: 8"]
ENDED = [
    ("plain", PLAIN),
    ("with lines of others in between", PLAIN.replace("    main()", "INFO 01-01 10:00:00 [x.py:1] served\n    main()")),
    ("a header with a time", PLAIN.replace("Trace", "[2025-03-01 09:12:40 TP3] Scheduler hit an exception: Trace")),
    ("code like an exception", PLAIN.replace('raise ValueError(f"no {name}")', "ConfigError: type = errors.Config")),
    ("indented", INDENTED),
    *((f"{line} of others", PLAIN.replace(END, f"step 3\n{line}\n{END}")) for line in OTHERS),
]  # fmt: skip


@pytest.mark.parametrize("log", [log for _, log in ENDED], ids=[name for name, _ in ENDED])
def test_a_traceback_ends_with_its_exception_and_nothing_else(log: str) -> None:
    assert types_and_calls(log) == [["ValueError", *CALLS]]
    assert ends(log)[0].message == "no rows"


CHAINED = """Traceback (most recent call last):
  File "/x/a.py", line 1, in read
    open(path)
KeyError: 'layers.0'

{link}

Traceback (most recent call last):
  File "/x/b.py", line 2, in load
    raise RuntimeError("not loaded")
RuntimeError: not loaded
"""
DURING = "During handling of the above exception, another exception occurred:"
DIRECT = "The above exception was the direct cause of the following exception:"


@pytest.mark.parametrize(("link", "depths"), [(DURING, [0, 1]), (DIRECT, [0, 1]), ("INFO trying again", [0, 0])])
def test_what_is_raised_while_another_is_handled_is_of_one_chain_on_each_rank(link: str, depths: list[int]) -> None:
    rows = CHAINED.format(link=link).splitlines()
    endings = ends("\n".join(f"[rank{rank}]: {row}" for row in rows for rank in (0, 1)))
    zero, one = ([end.traceback for end in endings if end.traceback.origin == f"[rank{rank}]"] for rank in (0, 1))
    for of_rank in (zero, one):
        assert [traceback.depth for traceback in of_rank] == depths
        assert (of_rank[0].chain == of_rank[1].chain) == (depths == [0, 1])
    assert not {traceback.chain for traceback in zero} & {traceback.chain for traceback in one}


@pytest.mark.parametrize("prefix", ["", "(Actor pid=7) ", "2026-01-02 03:04:05 [rank1]: "])
def test_a_traceback_that_comes_again_and_again_is_counted_and_its_last_line_known(prefix: str) -> None:
    lines = (
        "Traceback (most recent call last):",
        '  File "/job/t.py", line %d, in load',
        "    x()",
        "ValueError: no %d",
    )
    one = "".join(f"{prefix}{line}\n" for line in lines)
    log = "".join(one % (number, number) for number in range(1000)).encode()
    reader = read_candidates([log + b"KeyError: 'after all'\n"])
    first, last = reader.candidates
    assert (first.line.number, first.last_at, first.count, first.type) == (4, 4000, 1000, "ValueError")
    assert (last.line.number, last.text) == (4001, "KeyError: 'after all'")


def test_of_two_tracebacks_in_turn_none_is_taken_for_the_other() -> None:
    log = "".join(
        f'Traceback (most recent call last):\n  File "/job/{name}.py", line 1, in f\n    x()\n{name}Error: {number}\n'
        for number in range(200)
        for name in ("Value", "Key")
    )
    kept = {one.type: one.count for one in read_candidates([log.encode()]).candidates}
    assert kept == {"ValueError": 200, "KeyError": 200}


# -- what loggers, ranks, actors and CI put before a line is taken off; what a terminal would obey never gets through --


PREFIXES = yaml.safe_load(Path(__file__).with_name("prefixes.yaml").read_text())


@pytest.mark.parametrize(("raw", "text", "origin", "level"), PREFIXES, ids=[row[0][:50] for row in PREFIXES])
def test_what_stands_before_the_text_is_taken_off(raw: str, text: str, origin: str, level: str) -> None:
    line = read(7, raw.encode())
    assert (line.text, line.origin, line.level, line.number) == (text, origin, level, 7)


TELLING = [b"\x1b", b"[", b"]", b"\x07", b"31m", b"\\", b"\r", b"\n", b"\x9b", b"\xc2\x9b", b"ERROR: ", b"0;"]
TEXTS = st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass"))
PARTS = st.lists(st.one_of(st.binary(max_size=12), st.sampled_from(TELLING), TEXTS), max_size=20).map(b"".join)


@settings(max_examples=60)
@given(PARTS)
def test_nothing_that_a_terminal_obeys_gets_through(raw: bytes) -> None:
    for segment in segments(raw):
        line = read(1, segment)
        assert all(char.isprintable() or char == "\t" for char in line.shown + line.text + line.origin)


def test_what_is_shown_keeps_its_prefix_up_to_a_length() -> None:
    assert read(1, b"\x1b[36m(A pid=3)\x1b[0m boom\n").shown == "(A pid=3) boom"
    assert len(visible(b"x" * 1_000_000)) == len(read(1, b"x" * 1_000_000).text) == 4000
