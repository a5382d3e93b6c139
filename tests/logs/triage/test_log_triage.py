"""Any bytes have an answer, whatever they are, and however many."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci_tasks.agent.evidence import LinkedException, NotedException, ProcessEvidence, RunEvidence
from ci_tasks.logs.causes import NOT_SAID, NOTHING, UNKNOWN, JobEnd, JobKnowledge
from ci_tasks.logs.triage.log_triage import analyse, read_candidates, triage
from ci_tasks.records import BLOCKED, CANCELLED, FAILED, PASSED, Triage
from tests.parts.cases import named

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


@pytest.mark.parametrize("log", [[], [b""], [b"", b""], [b"\n"], [b"\n\n\n"], [b"step 1\nstep 2\n"]])
def test_a_log_without_an_end_is_unknown_and_its_exit_code_decides(log: list[bytes]) -> None:
    for exit_code, cause, verdict in ((None, UNKNOWN, UNKNOWN), (0, NOTHING, PASSED)):
        got = triage(log, exit_code=exit_code)
        assert (got.cause, got.verdict, got.line_no, got.line, got.signature) == (cause, verdict, None, "", "")


TELLING = [b"Traceback (most recent call last):\n", b'  File "/x/\x1b[1ma.py", line 3, in \x1b]0;f\x07\n', b"\n"]
TELLING += [
    b"ValueError: \x1b[31mx\n",
    b"[rank1]: ",
    b"(A pid=3) ",
    b"ERROR \x9b ",
    b"\xff\xfe error\n",
    b"FAILED a::b\n",
]
PARTS = st.one_of(st.sampled_from([*TELLING, b"FAILED a::b\n", b"E   assert \x07 1\n"]), st.binary(max_size=20))


@settings(max_examples=100)
@given(st.lists(PARTS, max_size=30), st.sampled_from([None, 0, 1]))
def test_no_log_breaks_it_and_nothing_raw_comes_out(parts: list[bytes], exit_code: int | None) -> None:
    got = triage(parts, exit_code=exit_code)
    assert got.verdict in (FAILED, BLOCKED, PASSED, UNKNOWN, CANCELLED)
    assert 0 <= got.confidence <= 1
    for text in strings(got):
        assert all(char.isprintable() or char == "\t" for char in text)


NAMES = ["".join(chr(97 + number // 26**place % 26) for place in range(4)) for number in range(1000)]


STREAM = """
import sys
from ci_tasks.logs.triage.log_triage import triage

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


def test_of_a_log_of_very_many_ends_a_bounded_number_of_last_words_is_kept() -> None:
    """To look above each of 100,000 ends took minutes."""
    end = b"##[error]Process completed with exit code 1.\n"
    said = [name.encode() + b" is what was said last\n" for name in NAMES]
    reader = read_candidates([line + end for line in said])
    assert len(reader.candidates) < 100 and reader.ended_at == 2 * len(NAMES)
    assert sum(one.text.endswith("said last") for one in read_candidates([*said[:5], end * 9]).candidates) == 5


IMPORTS = [
    ("tiny.hub.x", FAILED, "import_error", "code"),
    ("vllm.hub.x", BLOCKED, "dependency_version_mismatch", "dependency"),
    ("tiny", BLOCKED, "import_error", "dependency"),
]


@pytest.mark.parametrize(("module", "verdict", "cause", "group"), IMPORTS)
def test_module_that_code_under_test_lacks_is_its_own_fault(module: str, verdict: str, cause: str, group: str) -> None:
    log = f"""Traceback (most recent call last):
  File "/w/tests/test_x.py", line 3, in <module>
    from {module} import x
ModuleNotFoundError: No module named '{module}'
"""
    result = triage([log.encode()], 1, known=JobKnowledge(is_own_module=lambda name: name.startswith("tiny.")))
    assert (result.verdict, result.cause, result.group) == (verdict, cause, group)


@pytest.mark.parametrize(("offered", "verdict"), [("none", BLOCKED), ("1.0, 1.1", FAILED)])
def test_an_index_that_offers_nothing_is_no_fault_of_the_code(offered: str, verdict: str) -> None:
    """It cannot be read, or has nothing for this Python; a version that it lacks is one that the code asks for."""
    line = f"ERROR: Could not find a version that satisfies the requirement pytest==2 (from versions: {offered})"
    assert triage([f"$ pip install pytest==2\n{line}\n{EXIT_1}".encode()], 1).verdict == verdict


def raised(line: str, file: str = "/x/run.py") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 3, in main\n    call()\n{line}\n'


FULL, EXIT_1 = "OSError: [Errno 28] No space left on device", "##[error]Process completed with exit code 1.\n"
DIED = "subprocess.CalledProcessError: Command '['python', '-m', 'engine']' died with <Signals.SIGKILL: 9>."
SCRIPT = "##[group]Run verl\ngrep 'CUDA out of memory' log\necho 'No CUDA GPUs are available'\n##[endgroup]\n"
SURVIVED = "".join(f"ERROR: request {name} failed: no such tool\n" for name in NAMES)
KEY_ERROR = {"line": "KeyError: 'lr'"}
LAUNCH = "srun: error: Task launch for 7.1 failed on node n7: Job credential expired\n"
STATE = '1 - "POST /sleep HTTP/1.1" 200 OK\n1 - "GET /v1/models HTTP/1.1" 200 OK\n'
SERVED, NODE = '1 - "POST /generate HTTP/1.1" 200 OK\n', "srun: error: gpu1: task 0: Exited with exit code 1\n"
ENGINE = (
    f"ERROR EngineCore encountered a fatal error.\n{raised('RuntimeError: no frames')}Application shutdown complete\n"
)
KILLED = "run.sh: line 9: 77 Killed                  uvicorn app:x\n"
OLD = "/x/a.py:3: FutureWarning: width\n is old\n  warn_once('width')\nINFO:     Started server\n"
FILLING = "(raylet) file_system_monitor.cc:116: /tmp/ray/session_1 is over 95% full, available space: {} GB\n"
COMPILES = "WARNING Triton kernel JIT compilation during inference: _add_kernel. This is unexpected\n"
IBV, SYSTEM = (
    "misc/ibvwrap.cc:7 NCCL WARN Call to ibv_modify_qp failed",
    "RuntimeError: NCCL Error 2: unhandled system error",
)
UCX = "ucp_x.c:9  UCX  ERROR no key from the other side: Input/output error\n"
HUB = "ERROR 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/x\n"
# what the log is, the log, its exit code → what the answer has
ANSWERS: list[tuple[str, str | bytes, int | None, dict[str, Any]]] = [
    ("it passed", OOM, 0, {"verdict": PASSED}),
    ("UTF-8", f"caf\n{FULL}: '/größe/данные'\nx", None, {"cause": "disk_full", "line_no": 2}),
    ("a byte order mark", f"\ufeff{FULL}: '/x'", None, {"cause": "disk_full", "line": f"{FULL}: '/x'"}),
    ("an emptied log's hole", b"\0" * 4096 + b"RuntimeError: CUDA error: illegal access\n", None, {"verdict": FAILED}),
    ("a binary line", b"\x7fELF\0error: No space left on device\0%s failed\n", None, {"verdict": UNKNOWN}),
    ("a clean log that failed", "copying\nall quiet\n\n", 3,
     {"cause": UNKNOWN, "verdict": FAILED, "line_no": 2, "line": "all quiet"}),
    ("no line says why", "saving to /ckpt\nstep 4: loss 2.9\n", 1, {"confidence": 0.3, "reason": NOT_SAID}),
    ("an empty log that failed", "", 3, {"cause": UNKNOWN, "verdict": FAILED, "line_no": None, "line": ""}),
    ("a logged success is no exit code", "Job 'raysubmit_x' succeeded\nbash: line 9: upload: command not found\n", 127,
     {"verdict": FAILED, "line_no": 2}),
    ("a thousand errors before it", SURVIVED + OOM.decode(), 1, {"cause": "cuda_oom"}),
    ("no rule knows it", raised("x.y.OddError: no z"), 1, {"cause": UNKNOWN, "group": "code", "verdict": FAILED}),
    ("a reason beside a killed process", f"[TP0] Watchdog timeout (self.watchdog_timeout=300)\n{raised(DIED)}", 1,
     {"cause": "timeout_hang"}),
    ("a step's script is no reason", f"{SCRIPT}KeyError: 'lr'\n{EXIT_1}", None, KEY_ERROR),
    ("a server that answers on has handled it", raised("ValueError: x") + SERVED * 3, None, {"verdict": UNKNOWN}),
    ("but not one that only says how it is", raised("KeyError: 'lr'") + STATE * 3, None, KEY_ERROR),
    ("and what it logged", "ERROR: model x does not exist\n" + SERVED * 3, None, {"verdict": UNKNOWN}),
    ("no word of success outweighs an engine's death", ENGINE, None, {"line": "RuntimeError: no frames"}),
    ("what follows the first death is no reason", raised("KeyError: 'lr'") + NODE + raised(FULL), None, KEY_ERROR),
    ("Slurm did not start it", f"{LAUNCH}srun: error: Timed out waiting for job step to complete\n", None,
     {"line": LAUNCH[:-1], "verdict": BLOCKED}),
    ("what the hub refused is missing later", HUB + raised("OSError: Invalid repository"), 1, {"verdict": BLOCKED}),
    ("no test that failed is blocked", f"E   {FULL}\n", 1, {"verdict": FAILED, "cause": "disk_full"}),
    ("tests that began after a success", "== 1 passed in 1s ==\n== test session starts ==", None, {"verdict": UNKNOWN}),
    ("the last of all steps", "iteration 19/20\niteration 20/20\n", None, {"verdict": PASSED}),
    ("not the last of all steps", "iteration 18/20\niteration 19/20\n", None, {"verdict": UNKNOWN}),
    ("what is killed has no last word", OLD + KILLED, None, {"cause": "host_oom_killed", "line": KILLED[:-1]}),
    ("a disk that fills up is not full", FILLING.format("61.5") + raised("KeyError: 'lr'"), 1, KEY_ERROR),
    ("but one with little left", FILLING.format("8.4") + raised("KeyError: 'lr'"), 1, {"cause": "disk_full"}),
    ("a kernel compiled late", f"{COMPILES}Results saved → /x/a.json\n", None, {"verdict": PASSED}),
    ("NCCL's warning says more", f"{IBV}\n{raised(SYSTEM)}", 1, {"line": IBV, "verdict": BLOCKED}),
    ("NCCL's error, if it is all there is", raised(SYSTEM), 1, {"line": SYSTEM, "verdict": BLOCKED}),
    ("UCX has no disk", f"{UCX}Caught signal 11 (Segmentation fault)\n", 1, {"cause": "segfault_illegal_access"}),
    ("SGLang's frames", raised("ValueError: leak", "/x/sglang/srt/a.py"), 1, {"cause": "sglang_engine_crash"}),
]  # fmt: skip


@named(("log", "code", "answer"), ANSWERS)
def test_a_log_has_this_answer(log: str | bytes, code: int | None, answer: dict[str, Any]) -> None:
    got = triage([log.encode() if isinstance(log, str) else log], exit_code=code)
    assert {name: getattr(got, name) for name in answer} == answer
    assert "\r" not in "".join(strings(got))
    assert "grep 'CUDA out of memory' log" not in [other.line for other in got.candidates]


# -- the reason of a failure whose end is known ------------------------------------------------------------------------


TIMEOUT = JobEnd("timeout", 143, timeout_minutes=90)
NO_ROOM = [b"OSError: [Errno 28] No space left on device\n"]


def test_what_ran_into_its_timeout_hangs_unless_the_log_knows_better() -> None:
    silent = analyse([b"step 1\n"], TIMEOUT)
    assert (silent.cause, silent.verdict, silent.line) == ("timeout_hang", "failed", "step 1")
    assert silent.reason == "it did not end within 90 min"
    assert silent.signature == analyse([b"step 2\n"], TIMEOUT).signature
    assert analyse(NO_ROOM, TIMEOUT) == triage(NO_ROOM, 143) and triage(NO_ROOM, 143).cause == "disk_full"
    assert analyse([b"step 1\n"], JobEnd("exit", 1)) == triage([b"step 1\n"], 1), "another end is read from the log"


@pytest.mark.parametrize("line", ["run.sh: line 8: 28 Killed  python3 train.py", "RuntimeError: exit code: -9"])
def test_a_kill_is_the_kernels_for_memory_only_if_the_kernel_killed_a_process(line: str) -> None:
    log = [f"{line}\n".encode()]
    for oom_kills in (None, 1):
        assert analyse(log, JobEnd("exit", 137, oom_kills=oom_kills)).cause == "host_oom_killed"
    result = analyse(log, JobEnd("exit", 137, oom_kills=0))
    assert (result.cause, result.group, result.verdict, result.line) == ("unknown", "unknown", "failed", line)
    assert "not by the kernel" in result.reason


def test_what_the_timeout_itself_makes_a_job_print_is_no_reason() -> None:
    died = "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>."
    log = [f'Traceback (most recent call last):\n  File "/x/run.py", line 3, in main\n    call()\n{died}\n'.encode()]
    assert triage(log, 143).rule == "killed-child"
    assert analyse(log, TIMEOUT).cause == "timeout_hang"


NCCL = (
    "torch.distributed.DistBackendError",
    "NCCL error in: x.cpp:1, remote process exited or there was a network error",
)
LOST = "rank 1 (pid 101) alone ended without an end mark, like a killed process"


def rank(
    number: int, end: str = "exit", *raised: str, at: float = 1.0, parent: int = 1, pid: int = 0
) -> ProcessEvidence:
    chain = (LinkedException(raised[0], raised[1]),) if raised else ()
    exceptions, pid, env = (NotedException(at, chain=chain),) * bool(raised), pid or 100 + number, {"RANK": str(number)}
    return ProcessEvidence(
        pid=pid, start=pid, ppid=parent, parent_start=parent, env=env, end=end, exceptions=exceptions
    )


FIRST = [
    ("two exceptions", [rank(0, "exit", "ValueError", "a", at=5), rank(1, "exit", "KeyError", "b", at=4)],
     "rank 1 (pid 101) ended first, with KeyError"),
    ("an exception, and the others are stopped for it", [rank(0, "exit", "ValueError", "a"), rank(1, ""), rank(2, "")],
     "rank 0 (pid 100) ended first, with ValueError"),
    ("killed, and the other loses it", [rank(0, "exit", *NCCL), rank(1, "")], LOST),
    ("killed, and the other ends", [rank(0), rank(1, "")], LOST),
    ("one rank", [rank(0, "exit", "ValueError", "a")], ""),
    ("two groups of the same ranks", [rank(0), rank(1, ""), rank(0, "", pid=7), rank(1, pid=8)], ""),
]  # fmt: skip


@named(("processes", "first"), FIRST)
def test_rank_that_ended_first_is_named_before_what_the_log_says(processes: list[ProcessEvidence], first: str) -> None:
    known = JobKnowledge(RunEvidence(processes=tuple(processes)))
    without = analyse(NO_ROOM, JobEnd("exit", 1)).reason
    reason = analyse(NO_ROOM, JobEnd("exit", 1), known).reason
    assert without and reason.endswith(without)
    assert reason.startswith(first) if first else reason == without
    assert analyse(NO_ROOM, TIMEOUT, known).reason == without, "a timeout kills them all"
    assert analyse([b"ok\n"], JobEnd("exit", 0), known).reason == ""
