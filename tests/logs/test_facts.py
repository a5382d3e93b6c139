"""What a log says: evidence of tests, the line that explains a failure, and text that a terminal can be given."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.logs.lines import read, shown
from ci_tasks.logs.reading import FactsReader, LogFacts, read_log


def _read(text: str | bytes) -> LogFacts:
    data = text.encode() if isinstance(text, str) else text
    facts = read_log([data]).facts
    assert str(read_log(data[at : at + 7] for at in range(0, len(data), 7)).facts) == str(facts)  # nan is not nan
    return facts


PYTEST: list[tuple[str, dict[str, int] | None]] = [
    ("===== 3 passed in 0.01s =====", {"passed": 3}),
    ("= 1 failed, 2 passed, 1 error, 2 errors in 61.00s (0:01:01) =", {"failed": 1, "passed": 2, "error": 3}),
    ("\x1b[32m===== \x1b[1m3 passed\x1b[0m in 0.01s =====\x1b[0m", {"passed": 3}),
    ("2 skipped, 1 xfailed in 0.10s", {"skipped": 2, "xfailed": 1}),  # -q
    ("===== no tests ran in 0.00s =====", {}),
    ("===== 5 deselected in 0.01s =====", {}),
    ("= 1 passed in 1.00s =\n= 2 passed, 1 failed in 1.00s =", {"passed": 3, "failed": 1}),
    ("3 passed the exam in 2 days", None),
    ("===== test session starts =====", None),
]


@pytest.mark.parametrize(("text", "counts"), PYTEST, ids=[text[:40] for text, _ in PYTEST])
def test_pytest_counts_are_summed_over_all_sessions(text: str, counts: dict[str, int] | None) -> None:
    assert _read(text).pytest == counts


UNITTEST = [
    ("Ran 3 tests in 0.001s\n\nOK", (3, 0, 0)),
    ("Ran 1 test in 0.001s\n\nOK (skipped=1)", (1, 1, 0)),
    ("Ran 5 tests in 1.0s\n\nFAILED (failures=1, errors=2, skipped=1)", (5, 1, 3)),
    ("Ran 2 tests in 1.0s\n\nFAILED (failures=1)", (2, 0, 1)),
    ("Ran 1 test in 0.001s\n\nFAILED (unexpected successes=1)", (1, 0, 1)),
    ("OK (skipped=1)", (None, 0, 0)),
]


@pytest.mark.parametrize(("text", "counts"), UNITTEST, ids=[repr(text) for text, _ in UNITTEST])
def test_unittest_counts(text: str, counts: tuple[Any, ...]) -> None:
    facts = _read(text)
    assert (facts.unittest, facts.unittest_skipped, facts.unittest_failed) == counts


def test_failures_that_pytest_lists_count_where_it_gives_no_count() -> None:
    listed = "FAILED t/test_a.py::test_b - assert 0\nERROR test_c.py::test_d\n"
    assert _read(f"{listed}FAILED (failures=1)\nERROR a.py - of a logger\nERROR a.py:12] too\n").pytest_failed == 2


METRICS = [
    ("step 3: {'train/loss': 0.1}", 1),
    ("(MegatronTrainRayActor pid=5343) step 0: {'train/loss': 1}", 1),
    ("(RolloutManager pid=12, ip=10.0.0.1) [2025-10-01 12:00:00] rollout.py:12 - rollout 0: {'r': 1}", 1),
    ("\x1b[36m(Actor pid=1)\x1b[0m step 1: {'x': 1}", 1),
    ("step 3: done", 0),
    ("footstep 3: {", 0),
]


@pytest.mark.parametrize(("line", "count"), METRICS, ids=[line for line, _ in METRICS])
def test_metrics_lines_are_seen_behind_a_loggers_and_an_actors_prefix(line: str, count: int) -> None:
    assert _read(line).metrics == count


def test_gpus_blocked_and_daemon_lines() -> None:
    facts = _read("Acquired GPUs: 2,5\nci-tasks: blocked: no GPU free\ndocker: Error response from daemon: denied\n")
    assert (facts.gpu_ids, facts.blocked) == ((2, 5), "no GPU free")
    assert facts.daemon == "docker: Error response from daemon: denied"


SAID = [
    ("daemon", "podman: no such image", True),
    ("daemon", "Error: short-name resolution failed", True),
    ("daemon", "dial: Cannot connect to the Docker daemon at unix:///var/run/docker.sock", True),
    # It died meanwhile.
    ("daemon", 'time="2026-11-20T15:09:13Z" level=error msg="error waiting for container: unexpected EOF"', True),
    ("srun", "srun: unrecognized option '--container-image=x'", True),
    ("srun", "srun: option '--con' is ambiguous; possibilities: '--container' '--context'", True),
    ("srun", "srun: error: Invalid argument (x) for option --container-mounts", True),
    ("srun", "srun: error: gpu1: task 0: Exited with exit code 1", False),
    ("srun", "the test says srun: unrecognized option", False),
]


@pytest.mark.parametrize(("fact", "line", "is_one"), SAID)
def test_what_a_container_runtime_and_srun_without_pyxis_say_of_themselves(fact: str, line: str, is_one: bool) -> None:
    assert getattr(_read(f"{line}\nTry 'srun --help'\n"), fact) == (line if is_one else "")


def test_an_empty_line_is_a_line_but_not_the_last_thing_said() -> None:
    assert _read("\nsaid\n\n   \n").last_line == (2, "said")


SHOWN = [
    (b"\x1b[1;31mred\x1b[0m", "red"),
    (b"\x1b]0;title\x07text", "text"),
    (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    (b" 10%\r 50%\r100%\r\n", "100%"),
    (b" 10%\r100%\n", "100%"),
    (b"a\tb\x07\x00", "a\tb��"),
    (b"\xff\xfe", "��"),
    ("\u202egnp.exe\x9b31m".encode(), "�gnp.exe�31m"),
    (b"cut \x1b[3", "cut �[3"),
    (b"x" * 1000, "x" * 300),
]


@pytest.mark.parametrize(("raw", "text"), SHOWN, ids=[repr(raw)[:40] for raw, _ in SHOWN])
def test_no_control_character_survives(raw: bytes, text: str) -> None:
    assert shown(raw) == text


def test_of_each_metric_the_last_value_is_kept() -> None:
    facts = _read(
        b"step 0: {'train/loss': 2.5, 'note': 'text', 'train/step': 0}\n"
        b"(Actor pid=3) x - step 1: {'train/loss': -1.5e-07, 'train/kl': nan}\n"
        b"no step: {'train/loss': 9}\n"
        b"rollout 1: {'rollout/reward': np.float64(0.25)}\n"
    )
    assert str(facts.values) == "{'train/loss': -1.5e-07, 'train/step': 0.0, 'train/kl': nan, 'rollout/reward': 0.25}"


def test_metrics_without_end_take_no_memory_without_end() -> None:
    facts = _read(b"".join(b"step %d: {'m%d': 1}\n" % (n, n) for n in range(1000)) + b"step 1000: {'m3': 7}\n")
    assert (len(facts.values), facts.values["m3"]) == (200, 7)


FRAGMENTS = [
    *(text for text, _ in (*PYTEST, *UNITTEST, *METRICS)), *(line for _, line, _ in SAID),
    "\x1b[36m(Actor pid=3)\x1b[0m ", "\x1b[31m\x1b[1m1 failed\x1b[0m, 2 passed in 1.20s", "\x1b]0;title\x07",
    "Acquired GPUs: 0,3", "ci-tasks: blocked: why", "##[group]Run", "50%", "said", " ",
    "\n", "\n", "\n", "\r\n", "\r", "\0",
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30), st.integers(0, 3), st.integers(1, 40))
def test_a_large_log_says_what_its_lines_say(fragments: list[str], blocks: int, size: int) -> None:
    """Several times, some blocks apart; a reader that needs every line sees the same."""

    class EveryLine(FactsReader):
        def needs_next_line(self) -> bool:
            return True

    text = "".join(fragments).encode()
    whole = ((b"nothing of note " * 100 + b"\n" * 3) * 200).join([text] * (blocks + 1))
    pieces = (whole[at : at + size * 1000] for at in range(0, len(whole), size * 1000))
    every = EveryLine()
    read([whole], every)
    assert str(read_log(pieces).facts) == str(every.facts)


def test_a_line_that_ends_with_an_escape_hides_not_the_next_one() -> None:
    assert _read("nothing\x1b\n=== 3 passed in 0.1s ===\nend\n").pytest == {"passed": 3}


def test_a_line_without_end_is_evidence_by_its_beginning_or_by_what_a_progress_bar_shows_last() -> None:
    for line, facts in ((b"3 passed in 1.00s " + b"x" * (1 << 20), {"passed": 3}), (b"1%\r" * (1 << 19), None)):
        assert read_log([line, b"\r3 passed in 1.00s" if facts is None else b""]).facts.pytest == {"passed": 3}
