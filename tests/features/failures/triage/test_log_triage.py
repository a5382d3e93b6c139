"""Any bytes have an answer, whatever they are, and however many."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.agent.codec import encode
from ci_tasks.features.failures.triage.candidate_reader import CandidateReader
from ci_tasks.features.failures.triage.log_triage import triage
from ci_tasks.features.failures.triage.rules import shipped
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, PASSED, Triage
from ci_tasks.results.triage import NOTHING, UNKNOWN

OOM = b"""loading
Traceback (most recent call last):
  File "/root/slime/train.py", line 3, in step
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
stopping
"""


def strings(got: Triage) -> list[str]:
    """All text of an answer that may come to a terminal."""
    values = [got.line, got.signature, got.reason, got.rule, got.cause, *got.context, *got.frames]
    return values + [candidate.line for candidate in got.candidates]


def test_the_answer_names_line_cause_and_verdict() -> None:
    got = triage([OOM])
    assert (got.cause, got.verdict, got.line_no) == ("cuda_oom", FAILED, 5)
    assert got.line.startswith("torch.OutOfMemoryError")
    assert got.signature.startswith("OutOfMemoryError: CUDA out of memory")
    assert got.frames == ("train.py:step",)
    assert got.context[0] == "loading" and got.context[-1] == "stopping"
    assert got.reason and got.confidence > 0.8


def test_the_answer_is_json() -> None:
    public = encode(triage([OOM]))
    assert {"cause", "verdict", "line_no", "line", "signature", "confidence", "context", "reason"} <= set(public)
    assert json.loads(json.dumps(public))["line_no"] == 5


FROM_FRAMES = [
    ("/x/sglang/srt/managers/scheduler.py", "ValueError: memory leak", "sglang_engine_crash", "SGLang's code"),
    ("/x/huggingface_hub/file_download.py", "ValueError: no such thing", "hf_download", "could not be downloaded"),
]


@pytest.mark.parametrize(("file", "line", "cause", "words"), FROM_FRAMES, ids=[row[2] for row in FROM_FRAMES])
def test_a_cause_that_only_the_frames_show_is_explained(file: str, line: str, cause: str, words: str) -> None:
    got = triage([f'Traceback (most recent call last):\n  File "{file}", line 3, in f\n    g()\n{line}\n'.encode()], 1)
    assert (got.cause, words in got.reason) == (cause, True), got.reason


@pytest.mark.parametrize("log", [[], [b""], [b"", b""], [b"\n"], [b"\n\n\n"], [b"step 1\nstep 2\n"]])
def test_a_log_without_an_end_is_unknown_and_its_exit_code_decides(log: list[bytes]) -> None:
    for exit_code, cause, verdict in ((None, UNKNOWN, UNKNOWN), (0, NOTHING, PASSED)):
        got = triage(log, exit_code=exit_code)
        assert (got.cause, got.verdict, got.line_no, got.line, got.signature) == (cause, verdict, None, "", "")


def test_exit_code_0_makes_what_was_printed_no_failure() -> None:
    assert triage([OOM], exit_code=0).verdict == PASSED


def test_a_binary_line_is_no_evidence_and_the_hole_of_an_emptied_log_is_none_either() -> None:
    assert triage([b"\x7fELF\0error: No space left on device\0%s failed\n"]).verdict == "unknown"
    assert triage([b"\0" * 4096 + b"RuntimeError: CUDA error: an illegal memory access\n"]).verdict == "failed"


def test_another_exit_code_makes_a_clean_log_unknown_with_its_last_line() -> None:
    got = triage([b"copying\nall quiet\n\n"], exit_code=3)
    assert (got.cause, got.verdict, got.line_no, got.line) == (UNKNOWN, FAILED, 2, "all quiet")
    assert got.confidence < 0.3


def test_another_exit_code_of_an_empty_log_is_unknown_too() -> None:
    got = triage([], exit_code=3)
    assert (got.cause, got.verdict, got.line_no, got.line) == (UNKNOWN, FAILED, None, "")


def test_a_logged_success_does_not_override_an_exit_code() -> None:
    got = triage([b"Job 'raysubmit_x' succeeded\nbash: line 9: upload: command not found\n"], exit_code=127)
    assert (got.verdict, got.line_no) == (BLOCKED, 2)


def test_a_page_that_speaks_of_failures_is_no_failure() -> None:
    page = (
        b"# Statuses\n\n```bash\nci-tasks triage failed.log   # why a job of CI failed\n```\n\n| status | meaning |\n"
    )
    page += b"|---|---|\n| failed | a test failed, or the script did |\n| blocked | the disk is full |\n"
    page += b"- one more line of a list\n" * 12
    assert triage([page]).verdict == UNKNOWN


BINARY = [
    ("zeros", bytes(5000)),
    ("all bytes", bytes(range(256)) * 40),
    ("zip", b"PK\x03\x04\x14\x00\x00\x00\x08\x00" + bytes(range(255, -1, -1)) * 20),
    ("gzip", b"\x1f\x8b\x08\x00" + b"error\xff\xfe" * 100),
]


@pytest.mark.parametrize("log", [row[1] for row in BINARY], ids=[row[0] for row in BINARY])
def test_what_is_no_text_has_an_answer(log: bytes) -> None:
    got = triage([log], exit_code=1)
    assert got.verdict in (FAILED, BLOCKED)
    assert all(text.isprintable() or "\t" in text for text in strings(got))


ENCODINGS = [
    ("UTF-8", "OSError: [Errno 28] No space left on device: '/größe/данные'".encode()),
    ("Latin-1", "OSError: [Errno 28] No space left on device: '/größe'".encode("latin-1")),
    ("GBK", "OSError: [Errno 28] No space left on device: '/数据'".encode("gbk")),
    ("byte order mark", "\ufeffOSError: [Errno 28] No space left on device: '/x'".encode()),
]


@pytest.mark.parametrize("line", [row[1] for row in ENCODINGS], ids=[row[0] for row in ENCODINGS])
def test_a_line_in_any_encoding_is_understood(line: bytes) -> None:
    got = triage([b"caf\xe9\n", line, b"\n\xe6\x97\xa5\xe6\x9c\xac\n"])
    assert (got.cause, got.line_no) == ("disk_full", 2)
    assert got.line.startswith("OSError: [Errno 28] No space left on device")


def test_windows_newlines_are_newlines() -> None:
    got = triage([OOM.replace(b"\n", b"\r\n")])
    assert (got.cause, got.line_no, got.frames) == ("cuda_oom", 5, ("train.py:step",))
    assert "\r" not in "".join(strings(got))


def test_a_log_without_a_newline_at_its_end_is_read_to_its_end() -> None:
    assert triage([OOM[: OOM.index(b"\nstopping")]]).line_no == 5


def test_escape_sequences_never_reach_a_terminal() -> None:
    evil = b"\x1b]0;owned\x07\x1b[2J\x1b[31m"
    log = (
        evil
        + b"before\n"
        + OOM.replace(b"CUDA", evil + b"CUDA").replace(b"train.py", b"tr\x1b[1main.py")
        + evil
        + b"after\x1b"
    )
    got = triage([log])
    assert got.cause == "cuda_oom"
    assert not any(unicodedata.category(char) == "Cc" for text in strings(got) for char in text if char != "\t")
    assert "owned" not in "".join(strings(got))


TELLING = [
    b"Traceback (most recent call last):\n",
    b'  File "/x/\x1b[1ma.py", line 3, in \x1b]0;f\x07\n',
    b"ValueError: \x1b[31mx\n",
]
TELLING += [
    b"[rank1]: ",
    b"(A pid=3) ",
    b"ERROR \x9b ",
    b"\xff\xfe error\n",
    b"E   assert \x07 1\n",
    b"FAILED a.py::b\n",
    b"\r",
    b"\n",
]


@settings(max_examples=300)
@given(
    st.lists(st.one_of(st.sampled_from(TELLING), st.binary(max_size=20)), max_size=30), st.sampled_from([None, 0, 1])
)
def test_no_log_breaks_it_and_nothing_raw_comes_out(parts: list[bytes], exit_code: int | None) -> None:
    got = triage(parts, exit_code=exit_code)
    assert got.verdict in (FAILED, BLOCKED, PASSED, UNKNOWN, CANCELLED)
    assert 0 <= got.confidence <= 1
    for text in strings(got):
        assert all(char.isprintable() or char == "\t" for char in text)


@settings(max_examples=100)
@given(st.lists(st.integers(0, len(OOM) * 3), max_size=6))
def test_a_log_cut_anywhere_has_one_answer(at: list[int]) -> None:
    log = OOM * 3
    places = [0, *sorted(at), len(log)]
    assert triage(log[begin:end] for begin, end in pairwise(places)) == triage([log])


@pytest.mark.parametrize("size", [1 << 12, 1 << 16, 100_003])
def test_a_long_log_cut_anywhere_has_one_answer(size: int) -> None:
    """The failure begins where some blocks end: its context must not depend on that."""
    noise = b"".join(b"step %06d: loss 2.0\n" % n for n in range(200_000))
    for length in (262_136, 262_144, 300_000):
        log = noise[:length].rsplit(b"\n", 1)[0] + b"\n" + OOM + noise
        whole = triage([log])
        assert triage(log[at : at + size] for at in range(0, len(log), size)) == whole
        assert len(whole.context) > 8


NAMES = ["".join(chr(97 + number // 26**place % 26) for place in range(4)) for number in range(1000)]


def test_a_thousand_errors_that_were_survived_do_not_push_the_last_one_out() -> None:
    survived = b"".join(b"ERROR: request %s failed: no such tool\n" % name.encode() for name in NAMES)
    got = triage([survived + OOM], exit_code=1)
    assert got.cause == "cuda_oom"


OTHER_NUMBERS = [
    (b"worker exit code: 0", b"worker exit code: 137"),
    (b"rank 0 exitcode : 0", b"rank 3 exitcode : 9"),
    (b"child died with signal 0", b"child died with signal 11"),
]


@pytest.mark.parametrize(("harmless", "telling"), OTHER_NUMBERS)
def test_a_harmless_line_does_not_hide_one_that_differs_in_its_number(harmless: bytes, telling: bytes) -> None:
    steps = b"step 1 of the training is done\n" * 40
    got = triage([harmless, b"\n", steps, telling, b"\n", steps], exit_code=1)
    assert telling.decode() in [got.line, *(candidate.line for candidate in got.candidates)]


def test_a_place_in_code_before_an_error_is_no_part_of_pytests_report() -> None:
    got = triage([b"app.py:12: No space left on device\n"], exit_code=1)
    assert (got.cause, got.line_no) == ("disk_full", 1)


def test_what_says_most_is_never_forgotten() -> None:
    """However many there were before it, and however many wrappers come after it."""
    reader = CandidateReader(shipped())
    log = [f"OSError: [Errno 28] No space left on device: 'name {name}'" for name in NAMES]
    log += OOM.decode().splitlines()
    log += [f"OSError: [Errno 28] No space left on device: 'last {name}'" for name in NAMES[:50]]
    log += [f"ray.exceptions.ActorDiedError: The actor died unexpectedly: {name}" for name in NAMES]
    for number, row in enumerate(log, 1):
        reader.feed(number, row.encode(), b"")
    texts = [candidate.text for candidate in reader.candidates]
    assert any("CUDA out of memory" in text for text in texts)
    assert log[0] in texts, "the first stays too"
    assert len(texts) <= 400


STREAM = """
import sys
from ci_tasks.features.failures.triage.log_triage import triage

def pieces(megabytes):
    for n in range(megabytes * 4):
        row = b"[2025-03-01 09:12:%02d TP0] Decode batch. #token: %d, token usage: 0.02\\n" % (n % 60, n)
        warning = b"WARNING %d: request %x failed with status %d, retrying\\n" % (n, n * 7919, n % 600)
        yield (row * 60 + warning) * (262144 // (60 * len(row) + len(warning)))
    yield b"Traceback (most recent call last):\\n  File \\"/x/a.py\\", line 3, in f\\nKeyError: 'the end'\\n"

got = triage(pieces(int(sys.argv[1])))
peak = next(row for row in open("/proc/self/status") if row.startswith("VmHWM"))
print(got.line, peak.split()[1], sep="\\n")
"""


def test_a_log_of_any_size_takes_little_memory() -> None:
    done = subprocess.run([sys.executable, "-c", STREAM, "200"], stdout=subprocess.PIPE, check=True, timeout=100)
    line, peak = done.stdout.decode().splitlines()
    assert line == "KeyError: 'the end'"
    assert int(peak) < 100 * 1024


def test_that_a_process_was_killed_is_no_reason_where_one_is_known() -> None:
    died = "subprocess.CalledProcessError: Command '['python', '-m', 'engine']' died with <Signals.SIGKILL: 9>."
    text = (
        "[TP0] Watchdog timeout (self.watchdog_timeout=300)\nTraceback (most recent call last):\n"
        f'  File "/x/run.py", line 3, in main\n    call()\n{died}\n'
    )
    assert triage([text.encode()], 1).cause == "timeout_hang"


@pytest.mark.parametrize(
    "end",
    [
        "Error: Process completed with exit code 1.",
        "##[error]Process completed with exit code 137.",
        "bash: line 1: 24 Killed   python train.py",
    ],
)
def test_a_log_that_tells_only_how_it_ended_is_no_good_evidence_of_why(end: str) -> None:
    assert triage([f"loading\n{end}\n".encode()], 1).confidence < 0.5
    reason = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert triage([f"loading\n{reason}\n{end}\n".encode()], 1).confidence > 0.8


def test_an_exception_that_no_rule_knows_is_of_the_code_unless_the_environment_is_at_fault() -> None:
    text = 'Traceback (most recent call last):\n  File "/x/run.py", line 3, in main\n    call()\nx.y.OddError: no z\n'
    result = triage([text.encode()], 1)
    assert (result.cause, result.group, result.verdict) == ("unknown", "code", "failed")


def test_lines_below_a_plain_line_are_no_end_of_a_traceback() -> None:
    """Several files that are missing, one below the other, do not outdo the exception that ended the job."""
    missing = "".join(f"cat: part{n}.json: No such file or directory\n" for n in range(3))
    end = "Traceback (most recent call last):\n  File \"/x/run.py\", line 3, in main\n    f()\nKeyError: 'lr'\n"
    assert triage([(missing + end).encode()], 1).line == "KeyError: 'lr'"


def test_what_a_script_marks_as_failed_is_a_candidate() -> None:
    result = triage([b"loading\nTrial 1: FAIL [X] (accuracy 0.74, at least 0.93)\nreport written\nlock removed\n"], 1)
    assert "Trial 1: FAIL" in (result.line, *(other.line for other in result.candidates))[0]


def test_a_steps_script_is_no_reason_though_it_quotes_errors() -> None:
    script = "##[group]Run verl\ngrep 'CUDA out of memory' log\necho 'No CUDA GPUs are available'\n##[endgroup]\n"
    said = triage([f"{script}KeyError: 'lr'\n##[error]Process completed with exit code 1.\n".encode()])
    assert said.line == "KeyError: 'lr'"
    assert all(other.line_no > 4 for other in said.candidates)


@pytest.mark.parametrize("end", ["##[endgroup]\n", ""])
def test_a_programs_own_group_may_hold_the_reason(end: str) -> None:
    log = f"Current runner version: '2.3'\n##[group]Run tests\nKeyError: 'lr'\n{end}"
    ended = "##[error]Process completed with exit code 1.\n"
    assert triage([(log + ended).encode()]).line == "KeyError: 'lr'"


IMPORTS = [
    ("tiny.hub.x", FAILED, "import_error", "code"),
    ("vllm.hub.x", BLOCKED, "dependency_version_mismatch", "dependency"),
    ("tiny", BLOCKED, "import_error", "dependency"),
]


@pytest.mark.parametrize(("module", "verdict", "cause", "group"), IMPORTS)
def test_a_module_that_the_code_under_test_lacks_is_its_own_fault(
    module: str, verdict: str, cause: str, group: str
) -> None:
    log = f"""Traceback (most recent call last):
  File "/w/tests/test_x.py", line 3, in <module>
    from {module} import x
ModuleNotFoundError: No module named '{module}'
"""
    result = triage([log.encode()], 1, is_own=lambda name: name.startswith("tiny."))
    assert (result.verdict, result.cause, result.group) == (verdict, cause, group)
