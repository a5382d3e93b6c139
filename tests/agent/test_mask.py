"""Secrets do not get through, however they are written and wherever the stream is cut; everything else does."""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from collections.abc import Callable
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.agent.mask import Masker, is_maskable

PEM = "-----BEGIN KEY-----\nMIIBOgIBAAJB\nxy\n-----END KEY-----"
TOKEN = "hf_Qk2/v+9Zr~7Lw=x4TpB8"

CASES = [
    ([], "anything", "anything"),
    (["hunter22"], "the password is hunter22.", "the password is ***."),
    (["hunter22"], "hunter22hunter22", "******"),
    (["hunter22"], "xhunter22x", "x***x"),
    (["hunter22"], "hunter2 hunter", "hunter2 hunter"),
    ([" hunter22\n"], "hunter22", "***"),  # a file's last newline is no part of it
    (["abcd1234", "abcd1234efgh5678"], "abcd1234efgh5678 abcd1234efgh", "*** ***efgh"),  # one begins the other
    ([PEM], f"key: {PEM}!", "key: ***!"),
    ([PEM], "MIIBOgIBAAJB on its own, and xy", "*** on its own, and xy"),  # a line of a secret is one
    (["hunter\rpass word"], "hunter\r\npass word", "***\r\n***"),  # as a terminal shows it
    (["first-half\r\nsecond-half"], "first-half\nsecond-half", "***\n***"),
    (["hunter\npassword12"], "hunters hunter", "***s ***"),  # also inside of a word
    (["pässwörd1"], "pässwörd1", "***"),
    (["a.c*d+e?"], "abccd a.c*d+e?", "abccd ***"),  # no pattern
    # what a log is made of is not masked, whoever calls it a secret
    ([""], "a b", "a b"),
    (["abc"], "abc", "abc"),
    (["2026"], "2026-11-22", "2026-11-22"),
    (["true"], "passed: true", "passed: true"),
    (["main"], "origin/main", "origin/main"),
]


def masked(secrets: list[str], text: str, size: int = 1 << 20) -> str:
    data, masker = text.encode("utf-8", "surrogateescape"), Masker(secrets)
    got = b"".join(masker.feed(data[at : at + size]) for at in range(0, len(data), size)) + masker.flush()
    return got.decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(("secrets", "text", "shown"), CASES, ids=[repr(text[:30]) for _, text, _ in CASES])
def test_secrets_are_masked_wherever_the_stream_is_cut(secrets: list[str], text: str, shown: str) -> None:
    assert [masked(secrets, text, size) for size in (1, 2, 3, 5, 1000)] == [shown] * 5


def _base64(encode: Callable[[bytes], bytes], offset: int) -> Callable[[str], str]:
    return lambda value: encode(b"-" * offset + value.encode() + b"....").decode()


ENCODINGS: dict[str, Callable[[str], str]] = {
    "base64": _base64(base64.b64encode, 0),
    "base64, one byte later": _base64(base64.b64encode, 1),
    "base64, two bytes later": _base64(base64.b64encode, 2),
    "base64 for URLs": _base64(base64.urlsafe_b64encode, 0),
    "a URL": urllib.parse.quote,
    "all of a URL": lambda value: urllib.parse.quote(value, safe=""),
    "a URL in lower case": lambda value: re.sub("%..", lambda match: match[0].lower(), urllib.parse.quote(value)),
    "a form": urllib.parse.quote_plus,
    "JSON": json.dumps,
    "JSON with umlauts": lambda value: json.dumps(value, ensure_ascii=False),
    "JSON as PHP writes it": lambda value: json.dumps(value).replace("/", "\\/"),
    "repr": repr,
    "repr in JUnit": lambda value: escape(repr(value), {'"': "&quot;"}),
    "text of XML": escape,
    "an attribute of XML": lambda value: escape(value, {'"': "&quot;"}),
    "HTML": html.escape,
    "hexadecimal digits": lambda value: value.encode().hex(),
    "hexadecimal digits in upper case": lambda value: value.encode().hex().upper(),
    "bytes with colons": lambda value: value.encode().hex(":"),
    "HTML of a template": lambda value: html.escape(value).replace("&#x27;", "&#39;"),
}
VALUES = {
    "a token": TOKEN,
    "quotes": "a'b\"c<d>&e\\f/g h",
    "spaces": "correct horse battery",
    "umlauts": "größer-als-ähnlich",
    "another plane": "key-\U0001f511-\U0001f511-key",
    "what looks escaped": "50%41of\\u0041&amp;x",
    "JSON": '{"type": "account", "private_key": "-----BEGIN\\nMIIB\\n"}',
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoded_secret_is_masked_wherever_the_stream_is_cut(encoding: str) -> None:
    for value in VALUES.values():
        text = f"before {ENCODINGS[encoding](value)} after\n"
        for size in (1, 7, 1000):  # what stands around it is from the encoding: quotes, the neighbours' bits
            assert re.fullmatch(r"before .{0,4}\*\*\*.{0,9} after\n", masked([value], text, size)), text


def test_what_cannot_be_a_secrets_beginning_is_not_held_back() -> None:
    masker = Masker(["hunter22"])
    assert (masker.feed(b"step 1\n"), masker.feed(b"step hunt")) == (b"step 1\n", b"step ")
    assert masker.feed(b"ing\n") == b"hunting\n"


def test_a_mask_can_be_as_long_as_what_it_hides() -> None:
    masker = Masker(["hunter22"], keep_length=True)
    assert masker.feed(b"\0\1hunter22\2") + masker.flush() == b"\0\1********\2"


_SECRET = st.text("ab1%\\", min_size=4, max_size=9)
_TEXT = st.text("ab1%4\\\n;&", max_size=40)


@given(st.lists(_SECRET, max_size=3), st.lists(_TEXT | _SECRET, max_size=6))
def test_the_result_does_not_depend_on_the_cuts_and_no_secret_is_left(secrets: list[str], chunks: list[str]) -> None:
    cut, text = Masker(secrets), "".join(chunks)
    got = b"".join(cut.feed(chunk.encode()) for chunk in chunks) + cut.flush()
    assert got.decode() == masked(secrets, text)
    assert not [value for value in map(str.strip, secrets) if is_maskable(value) and value.encode() in got]
