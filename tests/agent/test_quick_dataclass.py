"""Classes of our `dataclass` behave as the standard library's; only their methods' making differs."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
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

    return {made.__name__: made for made in (Frozen, Child, Plain, Open)}


ACTS: list[Callable[[dict[str, Any]], object]] = [
    lambda c: c["Frozen"](1, "x", [2]),
    lambda c: c["Frozen"](),
    lambda c: c["Frozen"](1, d=1),
    lambda c: setattr(c["Frozen"](1), "a", 2),
    lambda c: c["Frozen"](1) == c["Frozen"](1, c=[9]),
    lambda c: len({c["Frozen"](1), c["Frozen"](1), c["Frozen"](2)}),
    lambda c: dataclasses.replace(c["Frozen"](1), b="z"),
    lambda c: dataclasses.is_dataclass(c["Frozen"]),
    lambda c: [one.name for one in dataclasses.fields(c["Child"])],
    lambda c: (c["Child"](), c["Child"]() == c["Child"](7), c["Child"]() == c["Frozen"](7)),
    lambda c: (c["Plain"](4), c["Plain"](4) == c["Plain"](4)),
    lambda c: c["Open"](1),
    lambda c: hash(c["Open"](1)),
    lambda c: setattr(c["Open"](1), "x", 5),
]


def outcome(act: Callable[[dict[str, Any]], object], dataclass: object) -> str:
    try:
        return repr(act(classes(dataclass)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("act", ACTS)
def test_it_does_as_the_standard_librarys(act: Callable[[dict[str, Any]], object]) -> None:
    assert outcome(act, quick_dataclass.dataclass) == outcome(act, dataclasses.dataclass)


def test_a_class_can_be_used_first_in_several_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thread is stopped while it makes the class, wherever the standard library is called for that."""
    made, original = quick_dataclass.dataclass(frozen=True), dataclasses.dataclass
    results: list[object] = []

    def use(cls: Any) -> None:
        try:
            results.append(cls(1, b=2).b)
        except Exception as error:
            results.append(repr(error))

    @made
    class Parent:
        a: int

    @made
    class Child(Parent):
        b: int = 0

    def use_elsewhere() -> None:
        threads.append(threading.Thread(target=use, args=(Child,)))
        threads[-1].start()
        threads[-1].join(0.05)  # it fails at once, or waits for the class

    def observed(**options: Any) -> Callable[[Any], Any]:
        def make(cls: Any) -> Any:
            use_elsewhere()
            original(**options)(cls)
            use_elsewhere()
            return cls

        return make

    threads: list[threading.Thread] = []
    monkeypatch.setattr(dataclasses, "dataclass", observed)
    use(Child)
    for thread in threads:
        thread.join(10)
    assert threads and results == [2] * (len(threads) + 1)
