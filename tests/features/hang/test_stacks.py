"""What NCCL says of ranks is read, and which locks a thread wants and holds by the text of its function."""

from __future__ import annotations

import pytest

from ci_tasks.features.hang.locks import lock_use
from ci_tasks.features.hang.rules import read_ras
from ci_tasks.features.hang.stacks import Stack, StackFrame

RAS = """MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 6 -- GPU 0 managed by process 649 on node n
  Rank 1 has launched up to operation 5 -- GPU 1 managed by process 650 on node n
"""


def test_nccl_says_which_rank_is_behind_unless_two_communicators_contradict_each_other() -> None:
    assert read_ras(RAS) == {649: 6, 650: 5}
    assert read_ras(RAS + RAS.replace("operation 6", "operation 4")) == {}


LOCKS = """
import threading
a, b = threading.Lock(), threading.Lock()
def both():
    with a:
        with b:
            pass
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
        (6, "b", {"a"}),
        (10, "b", set()),  # `a` is a parameter: nobody knows which lock it is
        (15, "", set()),
    ],
)
def test_what_a_thread_wants_and_holds_is_in_the_text_of_its_function(line: int, wants: str, holds: set[str]) -> None:
    use = lock_use(Stack((StackFrame("f", "x.py", line),)), {"x.py": LOCKS})
    assert ((use.wants or ("", ""))[1], {name for _, name in use.holds}) == (wants, holds)
