"""What NCCL says of ranks is read."""

from __future__ import annotations

from ci_tasks.features.hang.analysis import read_ras

RAS = """MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 6 -- GPU 0 managed by process 649 on node n
  Rank 1 has launched up to operation 5 -- GPU 1 managed by process 650 on node n
"""


def test_nccl_says_which_rank_is_behind_unless_two_communicators_contradict_each_other() -> None:
    assert read_ras(RAS) == {649: 6, 650: 5}
    assert read_ras(RAS + RAS.replace("operation 6", "operation 4")) == {}
