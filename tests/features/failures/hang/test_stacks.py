"""What faulthandler, py-spy and NCCL write is read, whatever stands in it."""

from __future__ import annotations

import json

import pytest

from ci_tasks.agent.hang.facts import ThreadFacts
from ci_tasks.features.failures.hang.lock_order import lock_use
from ci_tasks.features.failures.hang.ras import read_ras
from ci_tasks.features.failures.hang.stacks import Stack, StackFrame, read_faulthandler, read_py_spy
from ci_tasks.features.failures.hang.waits import wait_of

DUMP = """{"event": "start", "t": 1.0, "pid": 7}
Thread 0x00007f5664ffd6c0 (most recent call first):
  File "/job/loader.py", line 88 in next_batch
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f5666000740 [MainThread] (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/job/train.py", line ??? in <module>
"""


def test_the_last_thread_of_the_newest_dump_is_the_main_one() -> None:
    other, main = read_faulthandler(DUMP + DUMP.replace("line 88", "line 99"))
    run = StackFrame("run", "/usr/lib/python3.11/threading.py", 982)
    assert other == Stack((StackFrame("next_batch", "/job/loader.py", 99), run))
    assert (main.main, main.name) == (True, "MainThread")
    assert main.frames[1] == StackFrame("<module>", "/job/train.py", None)
    assert len(read_faulthandler(DUMP + '  File "/x.py", line 1 in f\n' * 300_000)[-1:]) <= 1, "it is read in part"


@pytest.mark.parametrize(
    "text",
    ["", "\0" * 100, "Thread 0x (most recent call first):", '  File "x", line 1 in f\n' * 10, DUMP.replace("0x", "1x")],
)
def test_what_is_no_dump_has_no_threads(text: str) -> None:
    assert read_faulthandler(text) == []


def test_py_spy_names_threads_and_native_frames() -> None:
    frames = [
        {"name": "pthread_cond_wait", "filename": "libc.so.6", "line": 0},
        {"name": "Queue.get", "filename": "/usr/lib/python3.11/queue.py", "line": 171},
    ]
    thread = {"thread_name": "MainThread", "os_thread_id": 7, "frames": frames}
    (stack,) = read_py_spy(json.dumps([thread]), pid=7)
    assert (stack.main, stack.tid, stack.natives) == (True, 7, frozenset({"pthread_cond_wait"}))
    assert stack.python == (StackFrame("get", "/usr/lib/python3.11/queue.py", 171),)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"frames": 3}]', "[" * 100_000, "null", '[{"frames": [1, null]}]'])
def test_what_py_spy_never_writes_gives_no_frames(text: str) -> None:
    assert [stack.frames for stack in read_py_spy(text, 1) if stack.frames] == []


RAS = """MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 6 -- GPU 0 managed by process 649 on node n
  Rank 1 has launched up to operation 5 -- GPU 1 managed by process 650 on node n
"""


def test_nccl_says_which_rank_is_behind_unless_two_communicators_contradict_each_other() -> None:
    answer = read_ras(RAS)
    assert (answer.operation, answer.behind) == ("AllReduce", (650,))
    assert read_ras(RAS + RAS.replace("operation 6", "operation 4")).behind == ()


LOCKS = """
import threading
a, b = threading.Lock(), threading.Lock()
def both():
    with a:
        with b:
            pass
def taken():
    a.acquire()
    b.acquire()
def released():
    a.acquire()
    a.release()
    b.acquire()
def own(a):
    with a:
        with b:
            pass
class C:
    def m(self):
        with self.a:
            with self.b:
                pass
def one_line():
    with a, b:
        pass
"""


@pytest.mark.parametrize(
    ("line", "wants", "holds"),
    [
        (5, "a", set()),
        (6, "b", {"a"}),
        (10, "b", {"a"}),
        (14, "b", set()),
        (17, "b", set()),  # `a` is a parameter: nobody knows which lock it is
        (22, "", set()),
        (25, "", set()),  # at which of both it is, its line does not say
    ],
)
def test_what_a_thread_wants_and_holds_is_in_the_text_of_its_function(line: int, wants: str, holds: set[str]) -> None:
    use = lock_use(Stack((StackFrame("f", "x.py", line),)), {"x.py": LOCKS})
    assert ((use.wants or ("", ""))[1], {name for _, name in use.holds}) == (wants, holds)


# The frames that the program's `load` has called, the innermost first; the system call → kind and words.
WAITS: list[tuple[str, str, str, str]] = [
    ("wait threading.py, get queue.py", "", "queue", "queue.get"),
    ("wait threading.py", "", "condition", "threading.wait"),
    ("acquire threading.py", "", "condition", "threading.acquire"),
    ("_wait threading.py, wait threading.py", "", "barrier", "barrier.wait"),
    ("join threading.py", "", "join", "threading.join"),
    ("result concurrent/futures/_base.py", "", "condition", "futures.result"),
    ("select selectors.py, run_forever asyncio/base_events.py", "", "poll", "base_events.run_forever"),
    ("_wait subprocess.py, wait subprocess.py", "", "child", "subprocess.wait"),
    ("poll multiprocessing/popen_fork.py", "", "child", "popen_fork.poll"),
    ("acquire logging/__init__.py", "", "lock", "logging.acquire"),
    ("acquire <frozen importlib._bootstrap>", "", "import", "import"),
    ("wait threading.py, all_reduce site-packages/torch/distributed/c10d.py", "", "collective", "all_reduce"),
    ("synchronize site-packages/torch/cuda/__init__.py", "", "gpu", "synchronize"),
    ("", "230 0x0", "sleep", "sleeps"),
    ("", "61 0x0", "child", "waits for a child"),
    ("", "0 0x3", "read", "reads"),
    ("", "34 0x0", "C code", "load at loader.py:88"),
    ("", "202 0x0", "C code", "load at loader.py:88"),
    ("", "", "", "load at loader.py:88"),
]  # fmt: skip


@pytest.mark.parametrize(("called", "syscall", "kind", "words"), WAITS)
def test_what_a_thread_waits_for_is_in_its_stack_and_its_system_call(
    called: str, syscall: str, kind: str, words: str
) -> None:
    inner = [StackFrame(name, file if file[0] == "<" else f"/usr/lib/python3.11/{file}", 1)
             for name, _, file in (frame.partition(" ") for frame in called.split(", ") if frame)]  # fmt: skip
    thread = ThreadFacts(7, syscall=syscall)
    own = StackFrame("load", "/job/loader.py", 88)
    wait = wait_of(Stack((*inner, own)), thread, "x86_64", {})
    assert (wait.kind, wait.text.removesuffix(" at loader.py:88, in load")) == (kind, words)
    assert wait.fd == (3 if kind == "read" else None)
    assert wait_of(Stack((own,)), thread, "x86_64", {}, computes=True).kind == "computes"
