"""Classes of our `dataclass` behave as the standard library's; only their methods' making and the words of errors
differ."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import field
from typing import Any

import pytest

from ci_tasks.agent import quick_dataclass


def classes(dataclass: Any) -> dict[str, Any]:
    @dataclass(frozen=True)
    class Frozen:
        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list, compare=False)

    @dataclass(frozen=True)
    class Child(Frozen):
        a: int = 7
        e: tuple[int, ...] = ()

    class Plain(Child):
        def __init__(self, a: int) -> None:
            super().__init__(a, e=(a,))

    @dataclass
    class Open:
        x: int
        total: int = field(init=False)

        def __post_init__(self) -> None:
            self.total = self.x + 3

    @dataclass(kw_only=True)
    class Ordered(Open):
        b: int = 0

    return {made.__name__: made for made in (Frozen, Child, Plain, Open, Ordered)}


ACTS: list[Callable[[dict[str, Any]], object]] = [
    lambda c: c["Frozen"](),
    lambda c: c["Frozen"](1, d=1),
    lambda c: c["Frozen"](1, "b", [], 4),
    lambda c: (c["Ordered"](1, b=2), c["Ordered"](1, 2)),
    lambda c: c["Frozen"](1).c is c["Frozen"](1).c,
    lambda c: delattr(c["Frozen"](1), "a"),
    lambda c: setattr(c["Frozen"](1), "a", 2),
    lambda c: (c["Frozen"](1) == c["Frozen"](1, c=[9]), len({c["Frozen"](1), c["Frozen"](1), c["Frozen"](2)})),
    lambda c: (dataclasses.replace(c["Frozen"](1), b="z"), dataclasses.is_dataclass(c["Frozen"])),
    lambda c: (c["Frozen"](1, "x", [2]), [one.name for one in dataclasses.fields(c["Child"])]),
    lambda c: (c["Child"](), c["Child"]() == c["Child"](7), c["Child"]() == c["Frozen"](7)),
    lambda c: (c["Plain"](4), c["Plain"](4) == c["Plain"](4)),
    lambda c: hash(c["Open"](1)),
    lambda c: c["Open"](1),
    lambda c: setattr(c["Open"](1), "x", 5),
]


def outcome(act: Callable[[dict[str, Any]], object], dataclass: object) -> str:
    try:
        return repr(act(classes(dataclass)))
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("act", ACTS)
def test_it_does_as_the_standard_librarys(act: Callable[[dict[str, Any]], object]) -> None:
    assert outcome(act, quick_dataclass.dataclass) == outcome(act, dataclasses.dataclass)


def test_a_class_can_be_used_first_in_several_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread uses it each time the first one calls the standard library for it: it waits, and does not fail."""
    made, original = classes(quick_dataclass.dataclass)["Child"], dataclasses.dataclass
    others: list[Future[Any]] = []

    def make(options: dict[str, bool], cls: Any) -> Any:
        others.append(pool.submit(made, 1, e=(2,)))
        wait(others, 0.05)
        return original(**options)(cls)

    monkeypatch.setattr(dataclasses, "dataclass", lambda **options: functools.partial(make, options))
    with ThreadPoolExecutor() as pool:
        made(1, e=(2,))
    assert others and all(other.result() == made(1, e=(2,)) for other in others)
