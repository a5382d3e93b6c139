"""What faulthandler, py-spy and NCCL write is read, whatever stands in it."""

from __future__ import annotations

import pytest

from ci_tasks.features.failures.hang.lock_order import lock_use
from ci_tasks.features.failures.hang.ras import read_ras
from ci_tasks.features.failures.hang.stacks import Stack, StackFrame, read_faulthandler

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
