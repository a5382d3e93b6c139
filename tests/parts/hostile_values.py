"""Values that no host of ours sends, and honest ones with something of that kind in them. Every choice is a seed's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from random import Random
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

NUMBERS = [-1, 0, 1, -(2**63), 2**63 - 1, 2**63, 2**64, 10**30, 10**400, 1e308, -1e308, 5e-324, 1.5, 253402300800.0]
INTEGERS = [-1, 0, 1, 7, 10**6, 10**12, -(2**63), 2**63 - 1]
FLOATS = [-1.0, 0.0, 1.5, 1e9, 1e308, -1e308, 5e-324]
TEXTS = [
    *("", "\0", "..", "/", "../../../guard", "/etc/passwd", "a\nb", "-rf", "1e999", "NaN", "null"),
    *("\x1b]52;c;ZXZpbA==\x07", "\x1b[2J", "\u202egnp.exe", "\ud83d", "\udcff"),
    *("${HOME}", "$(touch /tmp/hostile)", "; rm -rf ~", "x" * 300, "x" * 100_000, "é" * 5000),
]


def one_of(rng: Random, *makers: Callable[[], Any]) -> Any:
    """What one of them makes."""
    return rng.choice(makers)()


def deep(rng: Random) -> Any:
    value: Any = 1
    for _ in range(rng.choice([10, 100, 900])):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def anything(rng: Random) -> Any:
    plain: list[Any] = [*NUMBERS, *TEXTS, None, True, [], {}]
    return one_of(
        rng,
        lambda: rng.choice(plain),
        lambda: deep(rng),
        lambda: [rng.choice(plain) for _ in range(rng.randrange(20))],
        lambda: {rng.choice(TEXTS): rng.choice(TEXTS) for _ in range(rng.randrange(20))},
        lambda: [[]] * rng.choice([10, 1000, 100_000]),
    )


def crafted(rng: Random, record: Any, *texts: str) -> dict[str, Any]:
    """Values of the right types for the fields that a record must have and some of the others; `texts` are more of
    those that it may have."""
    part, hints, others = rng.choice([0.1, 0.3, 0.8]), get_type_hints(record), vars(record)
    names = [name for name in hints if name not in others or rng.random() < part]
    return {name: _of_type(rng, hints[name], [*TEXTS, *texts]) for name in names}


def _of_type(rng: Random, hint: Any, texts: Sequence[str]) -> Any:
    of, inner = get_origin(hint), get_args(hint)
    plain = {str: texts, int: INTEGERS, float: FLOATS, bool: [True, False]}
    if hint in plain:
        return rng.choice(plain[hint])
    if is_dataclass(hint):
        return crafted(rng, hint, *texts)
    if of is Literal:
        return rng.choice(inner)
    if of is Union:
        return None if rng.random() < 0.2 else _of_type(rng, inner[0], texts)
    if of is tuple and Ellipsis not in inner:
        return [_of_type(rng, each, texts) for each in inner]
    if of is tuple:
        return [_of_type(rng, inner[0], texts)] * rng.choice([0, 1, 4, 10_000 if inner[0] is int else 8])
    return {rng.choice(texts): _of_type(rng, inner[1], texts) for _ in range(rng.randrange(4))}


def spoilt(rng: Random, value: Any, changes: int = 1) -> Any:
    """`value`, which is JSON's, with some of what is in it replaced, taken away or doubled."""
    for _ in range(changes):
        value = _spoil(rng, value)
    return value


def _spoil(rng: Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        changed = dict(value)
        if rng.random() < 0.1:
            del changed[key]
        elif rng.random() < 0.05:
            changed["version"] = anything(rng)
        else:
            changed[key] = _spoil(rng, value[key])
        return changed
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        how = rng.random()
        if how < 0.1:
            return value[:at] + value[at + 1 :]
        if how < 0.2:
            small = not isinstance(value[at], (list, dict))  # else it is our own memory that is filled
            return value + value[at : at + 1] * (rng.choice([1, 10, 1000]) if small else 1)
        return [*value[:at], _spoil(rng, value[at]), *value[at + 1 :]]
    return anything(rng)


def spoilt_bytes(rng: Random, data: bytes) -> bytes:
    """Some bytes changed, cut out, doubled or put in."""
    for _ in range(rng.choice([1, 1, 2, 5])):
        data = _spoil_bytes(rng, data)
    return data


def _spoil_bytes(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    end = min(at + rng.choice([1, 1, 2, 4, 16, 256]), len(data))
    foreign = rng.choice([b"\0" * 8, b"\xff" * 8, b"\n", b"{", b"\0ci-tasks 1\n"])
    middle = rng.choice([rng.randbytes(end - at), b"", data[at:end] * rng.choice([2, 50]), foreign])
    return data[:at] if rng.random() < 0.2 else data[:at] + middle + data[end:]


BROKEN_JSON: list[bytes] = [
    *(b"", b"{", b"nonsense", b"null", b"[]", b"0", b'{"x": NaN}', b'{"x": 1e999}', b'{"a": "\\ud800"}'),
    *(b"[" * 100_000, b'{"a":' * 50_000, b"[" + b"[]," * 700_000, b"[" + b"9" * 500_000 + b"]"),
    *(b"\xff\xfe\x00", b"\xef\xbb\xbf{}", b'"' + b"\\u0000" * 50_000 + b'"'),
]


def broken_json(rng: Random, honest: Any) -> bytes:
    """The text of a file or of a message that should hold `honest`."""
    if rng.random() < 0.4:
        return rng.choice(BROKEN_JSON)
    text = json.dumps(spoilt(rng, honest, rng.choice([1, 2, 5]))).encode()
    return spoilt_bytes(rng, text) if rng.random() < 0.3 else text
