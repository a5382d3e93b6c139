"""Work in a thread: its result or its error, where it is asked for."""

from __future__ import annotations

import threading

import pytest

from ci_tasks.background import Background


def test_it_goes_on_while_nobody_waits_and_its_result_is_there_as_often_as_it_is_asked_for() -> None:
    asked = threading.Event()

    def double(number: int) -> int:
        assert asked.wait(10)
        return 2 * number

    task = Background(double, 21)
    asked.set()
    assert [task.result(), task.result()] == [42, 42]


@pytest.mark.parametrize("error", [ValueError("no tree"), KeyboardInterrupt()], ids=["an error", "an interrupt"])
def test_what_it_raised_is_raised_where_its_result_is_asked_for(error: BaseException) -> None:
    def fail() -> None:
        raise error

    task = Background(fail)
    with pytest.raises(type(error)) as raised:
        task.result()
    assert raised.value is error
