"""Classes of our `dataclass` behave as the standard library's; only their methods' making differs."""

from __future__ import annotations

import dataclasses
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
        hidden: str = field(default="", repr=False)

        @property
        def doubled(self) -> int:
            return self.a * 2

    @dataclass(frozen=True)
    class Child(Frozen):
        """With more fields, and one whose default differs."""

        a: int = 7
        e: tuple[int, ...] = ()

    class Plain(Child):
        def __init__(self, a: int) -> None:
            super().__init__(a, e=(a,))

    @dataclass
    class Open:
        x: int
        y: list[int] = field(default_factory=lambda: [1])
        z: int = field(init=False, default=3)
        total: int = field(init=False)

        def __post_init__(self) -> None:
            self.total = self.x + self.z

    @dataclass(frozen=True)
    class Own:
        a: float

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "own"

    @dataclass(frozen=True)
    class Error(Exception):
        message: str = "m"

    @dataclass(frozen=True)
    class Empty:
        pass

    return {made.__name__: made for made in (Frozen, Child, Plain, Open, Own, Error, Empty)}


ACTS: list[Callable[[dict[str, Any]], object]] = [
    lambda c: c["Frozen"](1),
    lambda c: c["Frozen"](1, "x", [2]),
    lambda c: c["Frozen"](b="x", a=1, hidden="h"),
    lambda c: c["Frozen"](1).doubled,
    lambda c: c["Frozen"](1).c is c["Frozen"](1).c,
    lambda c: c["Frozen"](),
    lambda c: c["Frozen"](1, d=1),
    lambda c: c["Frozen"](1, "", [], "", 5),
    lambda c: setattr(c["Frozen"](1), "a", 2),
    lambda c: setattr(c["Frozen"](1), "more", 2),
    lambda c: delattr(c["Frozen"](1), "a"),
    lambda c: c["Frozen"](1) == c["Frozen"](1, c=[9]),
    lambda c: c["Frozen"](1) == c["Frozen"](1, hidden="h"),
    lambda c: c["Frozen"](1) == c["Child"](1),
    lambda c: c["Frozen"](1) == 1,
    lambda c: len({c["Frozen"](1), c["Frozen"](1), c["Frozen"](2)}),
    lambda c: dataclasses.replace(c["Frozen"](1), b="z"),
    lambda c: dataclasses.asdict(c["Child"](c=[1])),
    lambda c: [one.name for one in dataclasses.fields(c["Child"])],
    lambda c: (c["Child"](), c["Child"]() == c["Child"](7), hash(c["Child"]()) == hash(c["Child"](7))),
    lambda c: (c["Plain"](4), c["Plain"](4) == c["Plain"](4), c["Plain"](4) == c["Child"](4, e=(4,))),
    lambda c: c["Open"](1),
    lambda c: c["Open"](1, z=2),
    lambda c: hash(c["Open"](1)),
    lambda c: c["Open"](1) == c["Open"](1),
    lambda c: setattr(c["Open"](1), "x", 5),
    lambda c: c["Own"](1) == c["Own"](2),
    lambda c: (c["Own"](1), hash(c["Own"](1)) == hash(c["Own"](1))),
    lambda c: isinstance(c["Error"]("x"), Exception) and c["Error"]("x").message,
    lambda c: (c["Empty"](), c["Empty"]() == c["Empty"](), hash(c["Empty"]()) == hash(c["Empty"]())),
    lambda c: c["Frozen"].b,
    lambda c: (c["Frozen"].hidden, c["Child"].hidden, c["Open"].z),
    lambda c: hasattr(c["Frozen"], "c"),
    lambda c: (dataclasses.is_dataclass(c["Plain"]), [one.name for one in dataclasses.fields(c["Plain"])]),
    lambda c: hasattr(c["Frozen"], "a"),
]


def outcome(act: Callable[[dict[str, Any]], object], dataclass: object) -> str:
    try:
        return repr(act(classes(dataclass)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("act", ACTS)
def test_it_does_as_the_standard_librarys(act: Callable[[dict[str, Any]], object]) -> None:
    assert outcome(act, quick_dataclass.dataclass) == outcome(act, dataclasses.dataclass)


def test_a_field_may_be_for_keywords_only() -> None:
    @quick_dataclass.dataclass(frozen=True)
    class Keyword:
        a: int = field(default=1, kw_only=True)
        b: int = field(kw_only=True)
        c: int

    assert repr(Keyword(2, b=3)) == "test_a_field_may_be_for_keywords_only.<locals>.Keyword(a=1, b=3, c=2)"
    with pytest.raises(TypeError):
        Keyword(2, 3)  # type: ignore[call-arg]
