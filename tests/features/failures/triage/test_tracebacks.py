"""Tracebacks of many ranks and actors at once: whose frames are whose, what ends one, and how they are chained."""

from __future__ import annotations

from ci_tasks.features.failures.triage.log_prefixes import read
from ci_tasks.features.failures.triage.tracebacks import TracebackEnd, Tracebacks


def ends(log: str) -> list[TracebackEnd]:
    """The tracebacks that end in a log, in the order of their ends."""
    tracebacks = Tracebacks()
    endings = []
    for number, raw in enumerate(log.strip("\n").split("\n"), 1):
        line = read(number, raw.encode())
        part = tracebacks.feed(line.origin, line.text)
        if isinstance(part, TracebackEnd):
            endings.append(part)
    return endings


def types_and_calls(log: str) -> list[tuple[str, list[str]]]:
    """(exception's type, `file:function` of its frames) of each."""
    return [(end.type, [frame.rsplit("/", 1)[-1] for frame in end.traceback.frames]) for end in ends(log)]


PLAIN = """
Traceback (most recent call last):
  File "/x/run.py", line 3, in <module>
    main()
    ~~~~^^
  File "/x/app.py", line 9, in main
    raise ValueError(f"no {name}")
ValueError: no rows
"""


def test_a_traceback_ends_with_its_exception() -> None:
    (end,) = ends(PLAIN)
    assert (end.type, end.message) == ("ValueError", "no rows")
    assert end.traceback.frames == ["/x/run.py:<module>", "/x/app.py:main"]


def test_an_exception_without_a_message_ends_one_too() -> None:
    assert types_and_calls(PLAIN.replace("ValueError: no rows", "AssertionError")) == [
        ("AssertionError", ["run.py:<module>", "app.py:main"])
    ]


def test_a_line_that_is_no_exception_does_not() -> None:
    assert types_and_calls(PLAIN.replace("ValueError: no rows", "INFO: all is well\nstep 3: done")) == []


def test_ranks_that_write_into_one_another_keep_their_frames() -> None:
    log = """
[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File "/x/a.py", line 1, in zero
[rank1]:   File "/x/b.py", line 2, in one
[rank1]:     fail()
[rank0]:     fail()
[rank1]: KeyError: 'b'
[rank0]: ValueError: a
"""
    assert types_and_calls(log) == [("KeyError", ["b.py:one"]), ("ValueError", ["a.py:zero"])]


def test_actors_that_write_into_one_another_keep_their_frames() -> None:
    log = """
(A pid=1) Traceback (most recent call last):
(A pid=2) Traceback (most recent call last):
(A pid=1)   File "/x/a.py", line 1, in zero
(A pid=2)   File "/x/b.py", line 2, in one
step 9 loss 0.2
(A pid=2) KeyError: 'b'
(A pid=1) ValueError: a
"""
    assert types_and_calls(log) == [("KeyError", ["b.py:one"]), ("ValueError", ["a.py:zero"])]


def test_other_lines_in_between_are_no_part_of_it() -> None:
    log = PLAIN.replace("    main()", "INFO 01-01 10:00:00 [x.py:1] served 3 requests\n    main()")
    assert types_and_calls(log) == [("ValueError", ["run.py:<module>", "app.py:main"])]


def test_a_header_with_a_time_and_lines_without() -> None:
    log = PLAIN.replace("Traceback", "[2025-03-01 09:12:40 TP3] Scheduler hit an exception: Traceback")
    assert types_and_calls(log) == [("ValueError", ["run.py:<module>", "app.py:main"])]


def test_a_traceback_inside_a_traceback_is_read_as_its_own() -> None:
    log = """
Traceback (most recent call last):
  File "/x/loader.py", line 1, in reraise
    raise exception
KeyError: Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/x/data.py", line 2, in __getitem__
    return rows[index]
KeyError: 7
"""
    assert types_and_calls(log) == [("KeyError", ["loader.py:reraise"]), ("KeyError", ["data.py:__getitem__"])]


CHAINED = """
Traceback (most recent call last):
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


def test_what_is_raised_while_another_is_handled_is_of_one_chain() -> None:
    for link in (DURING, DIRECT):
        first, second = ends(CHAINED.format(link=link))
        assert first.traceback.chain == second.traceback.chain
        assert (first.traceback.depth, second.traceback.depth) == (0, 1)


def test_two_that_only_follow_one_another_are_not() -> None:
    first, second = ends(CHAINED.format(link="INFO trying again"))
    assert first.traceback.chain != second.traceback.chain


def test_chains_of_several_ranks_are_not_mixed() -> None:
    rank0 = [f"[rank0]: {row}" for row in CHAINED.format(link=DURING).strip().split("\n")]
    rank1 = [f"[rank1]: {row}" for row in CHAINED.format(link=DURING).strip().split("\n")]
    endings = ends("\n".join(row for pair in zip(rank0, rank1, strict=True) for row in pair))
    by_rank = {rank: [end for end in endings if end.traceback.origin == rank] for rank in ("[rank0]", "[rank1]")}
    for both in by_rank.values():
        assert [end.traceback.depth for end in both] == [0, 1]
        assert len({end.traceback.chain for end in both}) == 1
    assert by_rank["[rank0]"][0].traceback.chain != by_rank["[rank1]"][0].traceback.chain


def test_rays_nested_errors_are_one_chain_with_the_innermost_last() -> None:
    log = """
Traceback (most recent call last):
  File "/x/driver.py", line 1, in main
    ray.get(ref)
ray.exceptions.RayTaskError(ValueError): ray::Outer.run() (pid=1, ip=10.0.0.1)
  File "/x/outer.py", line 2, in run
    ray.get(inner)
ray.exceptions.RayTaskError(ValueError): ray::Inner.work() (pid=2, ip=10.0.0.1)
  File "/x/inner.py", line 3, in work
    raise ValueError("deep")
ValueError: deep
"""
    endings = ends(log)
    assert [end.type.rsplit(".", 1)[-1] for end in endings] == ["RayTaskError(ValueError)"] * 2 + ["ValueError"]
    assert endings[-1].traceback.frames[-1] == "/x/inner.py:work"
    assert len({end.traceback.chain for end in endings}) == 1


def test_a_stack_dump_has_the_innermost_call_last_and_ends_with_nothing() -> None:
    tracebacks = Tracebacks()
    for row in (
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f7d (most recent call first):",
        '  File "/x/inner.py", line 9 in launch',
        '  File "/x/outer.py", line 3 in main',
    ):
        assert not isinstance(tracebacks.feed("", row), TracebackEnd)
    assert tracebacks.stack_of("") == ["/x/outer.py:main", "/x/inner.py:launch"]


def test_an_exception_after_a_stack_dump_is_not_its_end() -> None:
    log = """
Thread 0x00007f7d (most recent call first):
  File "/x/inner.py", line 9 in launch

ValueError: of somebody else
"""
    assert types_and_calls(log) == []


def test_a_traceback_whose_head_was_cut_off_is_read_from_its_first_frame() -> None:
    assert types_and_calls(PLAIN.split("\n", 2)[2]) == [("ValueError", ["run.py:<module>", "app.py:main"])]


def test_a_traceback_that_lost_its_indentation_is_read() -> None:
    bare = "\n".join(row.strip() for row in PLAIN.strip().split("\n") if "~~" not in row)
    assert types_and_calls(bare) == [("ValueError", ["run.py:<module>", "app.py:main"])]


def test_code_without_indentation_that_looks_like_an_exception_does_not_end_one() -> None:
    bare = "\n".join(row.strip() for row in PLAIN.strip().split("\n") if "~~" not in row)
    assert types_and_calls(bare.replace("main()", "Config: type = make()")) == types_and_calls(bare)


def test_code_that_looks_like_an_exception_does_not_end_one() -> None:
    log = PLAIN.replace('    raise ValueError(f"no {name}")', "    ConfigError: type = errors.Config")
    assert types_and_calls(log) == [("ValueError", ["run.py:<module>", "app.py:main"])]


def test_an_indented_one_is_read_with_or_without_its_header() -> None:
    indented = "\n".join(f"      {row}" for row in PLAIN.strip().split("\n"))
    assert types_and_calls(indented) == types_and_calls(PLAIN)
    assert types_and_calls(indented.split("\n", 1)[1]) == types_and_calls(PLAIN)


OTHERS = ["Epoch: 3", "Done: yes", "Warning: slow", "BatchSize: 8"]


def test_what_others_say_in_between_does_not_end_one() -> None:
    for line in OTHERS:
        log = PLAIN.replace("ValueError: no rows", f"step 3\n{line}\nValueError: no rows")
        assert types_and_calls(log) == types_and_calls(PLAIN), line


def test_not_even_at_once_where_it_is_a_mere_word() -> None:
    assert types_and_calls(PLAIN.replace("    main()\n", "    main()\nEpoch: 3\n")) == types_and_calls(PLAIN)


ODD_TYPES = ["__main__.Full: no rows", "socket.timeout: timed out", "_queue.Empty", "OutOfResources: shared memory"]


def test_types_of_any_name_end_one() -> None:
    for line in ODD_TYPES:
        ((name, _),) = types_and_calls(PLAIN.replace("ValueError: no rows", line))
        assert name == line.partition(":")[0]


def test_exception_groups_are_read() -> None:
    log = """
  + Exception Group Traceback (most recent call last):
  |   File "/x/run.py", line 3, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/x/task.py", line 9, in work
    |     raise ValueError("deep")
    | ValueError: deep
    +------------------------------------
"""
    assert types_and_calls(log) == [("ExceptionGroup", ["run.py:<module>"]), ("ValueError", ["task.py:work"])]
    group, deep = ends(log)
    assert deep.traceback.chain == group.traceback.chain, "it is the reason of the group"


def test_an_ignored_exception_is_marked() -> None:
    tracebacks = Tracebacks()
    tracebacks.ignore_next()
    parts = [tracebacks.feed("", row) for row in PLAIN.strip().split("\n")]
    assert [end.traceback.ignored for end in parts if isinstance(end, TracebackEnd)] == [True]


def test_a_thousand_ranks_are_not_all_remembered() -> None:
    tracebacks = Tracebacks()
    for rank in range(1000):
        tracebacks.feed(f"[rank{rank}]", "Traceback (most recent call last):")
    assert len(tracebacks._last) <= 201


def test_it_does_not_wait_for_ever() -> None:
    tracebacks = Tracebacks()
    tracebacks.feed("", "Traceback (most recent call last):")
    assert tracebacks.waiting
    for number in range(100):
        tracebacks.feed("[rank1]", f"step {number}")
    assert not tracebacks.waiting
