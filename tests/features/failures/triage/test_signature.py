"""A signature is equal for two runs of one failure and differs for two failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci_tasks.features.failures.triage.log_triage import triage
from ci_tasks.features.failures.triage.signature import is_specific, kind_of, of_code, package_of, signature_of, stable
from ci_tasks.records import FailureEvidence, Triage

SAME = [
    ("numbers", "Tried to allocate 1.16 GiB on GPU 3", "Tried to allocate 20.00 GiB on GPU 0"),
    ("units of memory", "of which 402.00 MiB is free", "of which 1.20 GiB is free"),
    ("steps", "cannot load global_step_120/iter_0000020", "cannot load global_step_40/iter_0000004"),
    ("long numbers in names", "cannot read part_0000017", "cannot read part_0000121"),
    ("threads", "Thread-12 (worker) died", "Thread-3 (worker) died"),
    ("Ray's jobs", "Job 'raysubmit_kS5vTq' failed", "Job 'raysubmit_AbCdEf' failed"),
    ("negative and small numbers", "loss is -1.2e-05", "loss is 3"),
    ("counts", "got 1,024 of 2,048 rows", "got 7 of 8 rows"),
    ("addresses", "<Engine object at 0x7f2a93c1b6a0>", "<Engine object at 0x1>"),
    ("process ids", "worker died (pid=1203, signal 9)", "worker died (pid=7, signal 9)"),
    ("uuids", "3f2504e0-4f89-11d3-9a0c-0305e82c3301 is gone", "00000000-4f89-11d3-9a0c-0305e82c3399 is gone"),
    ("hashes", "blob 9f2d1c0a7b is missing", "blob 0011aabb22cc is missing"),
    ("hosts and ports", "no answer from 10.0.0.1:6379", "no answer from 192.168.100.23:40122"),
    ("IPv6", "no answer from [fe80:0:0:0:1:2:3:4]:80", "no answer from [2001:db8:0:0:9:8:7:6]:4020"),
    ("directories", "no file /root/a/x.json", "no file /home/me/work/b/c/x.json"),
    ("temporary directories", "cannot write /tmp/tmpab12cd/out", "cannot write /tmp/tmpzz99yy/out"),
    ("Ray's sessions", "in session_2025-01-01_10-00-00_123456_1", "in session_2025-09-02_23-59-59_9_77"),
    ("times", "not up after 600.02 s at 2025-01-01 10:00:00", "not up after 30 s at 2025-12-31 23:59:59"),
    ("ranks", "rank 3 of 8 is missing", "rank 0 of 16 is missing"),
    ("ranks glued on", "rank3 is missing", "rank12 is missing"),
    ("ranks in words", "cannot read mp_rank_07_model.pt", "cannot read mp_rank_00_model.pt"),
    ("ranks of actors", "EngineCore_DP0 died", "EngineCore_DP13 died"),
    ("the order of a set", "unused: {'b', 'a', 'c'}", "unused: {'c', 'b', 'a'}"),
    ("the order of a dict", "got {'a': 'b', 'c': 'd'}", "got {'c': 'd', 'a': 'b'}"),
    ("nan", "kl is nan", "kl is 0.3"),
    ("samples", "no answer in 'What is the capital of France?'", "no answer in 'How many legs has a spider?'"),
    ("the length of a list", "ids [1, 2, 3]", "ids [7]"),
    ("spaces", "two  words", "two words "),
]
DIFFERENT = [
    ("words", "CUDA out of memory", "CUDA out of patience"),
    ("names in quotes", "KeyError: 'train'", "KeyError: 'test'"),
    ("a file's own name", "no file /root/a/x.json", "no file /root/a/y.json"),
    ("modules", "No module named 'a.b'", "No module named 'a.c'"),
    ("members of a set", "unused: {'b', 'a'}", "unused: {'b', 'c'}"),
    ("values of a dict", "got {'a': 'b', 'c': 'd'}", "got {'a': 'd', 'c': 'b'}"),
    ("digits of a name", "cannot read bf16", "cannot read bf18"),
    ("layers' names", "missing key: mlp.gate.weight", "missing key: attn.qkv.weight"),
    ("names with a number in them", "cannot read fp8_e4m3", "cannot read bf16"),
]


@pytest.mark.parametrize(("first", "second"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
def test_what_varies_from_run_to_run_is_left_out(first: str, second: str) -> None:
    assert stable(first) == stable(second)


@pytest.mark.parametrize(("first", "second"), [row[1:] for row in DIFFERENT], ids=[row[0] for row in DIFFERENT])
def test_what_makes_it_another_failure_stays(first: str, second: str) -> None:
    assert stable(first) != stable(second)


@given(st.text(max_size=80))
def test_making_it_stable_twice_changes_nothing(message: str) -> None:
    assert stable(stable(message)) == stable(message)


LINE = 'raise ValueError(f"{batch} has no advantages")'
EVIDENCE = FailureEvidence("ValueError", "no rows", "a.py", "load", source_line=LINE, line=7, source_path="/x/a.py")


def test_a_signature_is_a_few_words_and_a_hash_of_all_of_them() -> None:
    long = replace(EVIDENCE, message="no rows at all " * 9)
    for sign in (kind_of, signature_of):
        summary, _, digest = sign(long).partition("#")
        assert summary.startswith("ValueError: no rows at all")
        assert len(summary) < 90 and digest
        assert sign(replace(long, message=f"{long.message} two")) != sign(long)


LEVELS: list[tuple[str, dict[str, Any], bool, bool]] = [
    ("another exception", {"exception": "KeyError"}, False, False),
    ("another message", {"message": "no columns"}, False, False),
    ("another file", {"file": "b.py"}, False, False),
    ("another statement", {"source_line": LINE.replace("advantages", "rewards")}, True, False),
    ("another metric", {"metric": "kl"}, True, False),
    ("another status code", {"http_status": 429}, True, False),
    ("another signal", {"signal": "SIGSEGV"}, True, False),
    ("a renamed function around the same statement", {"function": "read"}, True, True),
    ("a line further down, in another checkout", {"line": 99, "source_path": "/home/me/src/y/a.py"}, True, True),
    ("a file of that name in another package", {"source_path": "/x/ray/a.py"}, True, False),
    ("another errno", {"number": "errno 98"}, True, False),
]


@pytest.mark.parametrize(("change", "same_kind", "same"), [row[1:] for row in LEVELS], ids=[row[0] for row in LEVELS])
def test_what_changes_the_kind_and_what_the_signature(change: dict[str, Any], same_kind: bool, same: bool) -> None:
    other = replace(EVIDENCE, **change)
    assert (kind_of(other) == kind_of(EVIDENCE), signature_of(other) == signature_of(EVIDENCE)) == (same_kind, same)


PACKAGES = {
    "": ["/root/slime/train.py", "/__w/slime/slime/train.py", "./test_a.py", "",
         "/home/me/.ci-tasks/runs/20261123-062221-ckpt-38a7bf/01/workspace/train.py",
         "/tmp/ray/session_2026-11-23/runtime_resources/working_dir_files/_ray_pkg_38a7bf/train.py"],
    "utils": ["/root/slime/slime/utils/data.py", "/home/me/git/slime/slime/utils/data.py",
              "/home/runner/work/slime/slime/slime/utils/data.py"],
    "tests": ["/root/slime/tests/test_a.py", "tests/test_a.py",
              "/home/me/.ci-tasks/runs/20261123-062221-ckpt-38a7bf/01/workspace/tests/test_a.py"],
    "asyncio": ["/usr/lib/python3.12/asyncio/tasks.py"],
    "modules": ["/opt/venv/lib/python3.10/site-packages/torch/nn/modules/linear.py"],
    "managers": ["/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py"],
}  # fmt: skip


def test_the_directory_of_a_file_counts_where_it_is_not_the_tree_itself() -> None:
    assert {name: [path for path in paths if package_of(path) == name] for name, paths in PACKAGES.items()} == PACKAGES


def raised(path: str, function: str = "check") -> str:
    return (
        f'Traceback (most recent call last):\n  File "{path}", line 8, in {function}\n'
        '    assert os.path.exists(tracker_file), f"{tracker_file} is missing"\nAssertionError: /root/latest is gone\n'
    )


UTILS = "/root/slime/slime/utils/load.py"
LOGS = [
    ("two packages", raised(UTILS), raised("/root/slime/slime/ray/load.py"), False),
    ("a package and the tree", raised(UTILS), raised("/root/slime/load.py"), False),
    ("a renamed function", raised(UTILS), raised(UTILS, "verify"), True),
    ("another machine", raised(UTILS), raised("/home/runner/work/slime/slime/slime/utils/load.py"), True),
    ("the tree on another machine", raised("/root/slime/load.py"), raised("/home/me/git/slime/load.py"), True),
]


@pytest.mark.parametrize(("first", "second", "same"), [row[1:] for row in LOGS], ids=[row[0] for row in LOGS])
def test_two_files_of_one_name_share_no_signature(first: str, second: str, same: bool) -> None:
    a, b = (one_signature(log.encode()) for log in (first, second))
    assert a.kind == b.kind and (a.signature == b.signature) == same


def test_a_statement_that_stands_anywhere_does_not_say_where_it_is() -> None:
    assert is_specific(LINE)
    assert is_specific('assert log_dict["train/ppo_kl"] == 0.0')
    assert not any(map(is_specific, ("", "raise", "raise e", "assert a == b", "assert result == expected", "assert (")))
    generic = replace(EVIDENCE, source_line="raise e")
    assert signature_of(generic) != signature_of(replace(generic, function="read"))


def test_calls_of_packages_do_not_count_where_there_are_own_ones() -> None:
    frames = ["/x/train.py:main", "/usr/lib/python3.11/runpy.py:run", "/v/site-packages/torch/a.py:backward"]
    assert of_code(frames) == ("train.py:main",)
    assert of_code(frames[1:]) == ("a.py:backward",), "the innermost, where all are of packages"
    assert of_code(["/x/a.py:a", "/x/b.py:b", "/x/c.py:c", "/x/d.py:d"]) == ("b.py:b", "c.py:c", "d.py:d")


# A failure of several ranks, as often as hypothesis likes.

RANKS = 4


def rank_lines(rank: int, seed: Callable[[str], Any], broken: bool) -> list[str]:
    """What one rank of a job writes: its metrics, then its traceback or that it lost its peer."""
    pid, address, loss = seed("pid"), f"0x7f{seed('address'):010x}", seed("loss")
    place = f"/root/job{pid}/slime"
    rows = [f"step 0: loss {loss}", f"step 1: loss {loss}", "Traceback (most recent call last):"]
    rows += [f'  File "{place}/train.py", line {seed("line")}, in step', "    loss = self.model(batch)"]
    if broken:
        rows += [
            f'  File "{place}/loss.py", line 88, in policy_loss',
            "    raise ValueError(f'{batch} has no advantages')",
        ]
        rows.append(
            f"ValueError: <Batch object at {address}> of rank {rank} has no advantages (pid={pid}, 3 of {loss})"
        )
    else:
        lost = "remote process exited or there was a network error, NCCL version 2.26.2, peer 10.0.0."
        rows.append(f"torch.distributed.DistBackendError: NCCL error in: /pytorch/x.cpp:94, {lost}{rank}:{pid}")
    return [f"(Actor pid={pid}) [rank{rank}]: {row}" for row in rows]


@st.composite
def runs(draw: st.DrawFn) -> bytes:
    """One run of the failure: which ranks break, their numbers and times, and how their lines are interleaved."""
    numbers = {"pid": st.integers(2, 99_999), "address": st.integers(0, 2**40 - 1), "line": st.just(61)}
    numbers["loss"] = st.integers(0, 999)
    broken = draw(st.sets(st.integers(0, RANKS - 1), min_size=1))
    queues = []
    for rank in range(RANKS):
        values: dict[str, Any] = {}

        def seed(name: str, values: dict[str, Any] = values) -> Any:
            if name == "loss":
                return draw(numbers[name])
            return values.setdefault(name, draw(numbers[name]))

        queues.append(rank_lines(rank, seed, rank in broken))
    order = draw(st.permutations([rank for rank, queue in enumerate(queues) for _ in queue]))
    second = draw(st.integers(0, 40))
    rows = [
        f"2025-0{draw(st.integers(1, 9))}-11T10:00:{second + n // 3:02}.{n:07}Z {queues[r].pop(0)}"
        for n, r in enumerate(order)
    ]
    rows += [f"{row[:28]} ##[error]Process completed with exit code 1." for row in rows[-1:]]
    return "\n".join(rows).encode()


def one_signature(log: bytes) -> Triage:
    return triage([log], exit_code=1)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(runs())
def test_ranks_times_pids_and_addresses_in_any_order_are_one_failure(log: bytes) -> None:
    got = one_signature(log)
    assert "has no advantages" in got.line
    assert got.signature == EXPECTED


def fixed(**values: Any) -> Callable[[str], Any]:
    return lambda name: values.get(name, 1)


EXPECTED = one_signature("\n".join(rank_lines(0, fixed(line=61), True)).encode()).signature


def test_another_bug_is_another_failure_and_a_line_further_down_is_not() -> None:
    """An edit above a function moves its lines; who compares a tree with its parent must not see another failure."""
    rows = "\n".join(rank_lines(0, fixed(line=61), True))
    others = [rows.replace("has no advantages", "has no rewards"), rows.replace("/loss.py", "/value.py")]
    assert len({EXPECTED, *(one_signature(other.encode()).signature for other in others)}) == 3
    assert one_signature("\n".join(rank_lines(0, fixed(line=99), True)).encode()).signature == EXPECTED
