"""Secrets do not get through, however the stream is cut; everything else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks.agent.mask import Masker

PEM = "-----BEGIN KEY-----\nabcdef\nxy\n-----END KEY-----"

CASES = [
    ([], "anything", "anything"),
    (["hunter22"], "the password is hunter22.", "the password is ***."),
    (["hunter22"], "hunter22hunter22", "******"),
    (["hunter22"], "hunter2 hunter", "hunter2 hunter"),
    (["abc"], "abc", "abc"),  # under four characters
    ([""], "a b", "a b"),
    (["abcd"], "abcd", "***"),
    (["abcd", "abcdefgh"], "abcdefgh abcdef", "*** ***ef"),  # one begins the other
    (["abcd", "cdef"], "abcdef", "***"),  # one overlaps the other
    (["aaaa"], "aaaaaaa b", "*** b"),
    ([PEM], f"key: {PEM}!", "key: ***!"),
    ([PEM], "abcdef on its own, and xy", "*** on its own, and xy"),  # a line of a secret is one
    (["pässwörd"], "pässwörd", "***"),
    (["a.c*"], "abcc a.c*", "abcc ***"),  # no pattern
]


@pytest.mark.parametrize(("secrets", "text", "shown"), CASES, ids=[repr(text[:30]) for _, text, _ in CASES])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_secrets_are_masked_wherever_the_stream_is_cut(secrets: list[str], text: str, shown: str, size: int) -> None:
    data, masker = text.encode(), Masker(secrets)
    got = b"".join(masker.feed(data[at : at + size]) for at in range(0, len(data), size)) + masker.flush()
    assert got.decode() == shown


def test_what_cannot_be_a_secrets_beginning_is_not_held_back() -> None:
    masker = Masker(["hunter22"])
    assert masker.feed(b"step 1\n") == b"step 1\n"
    assert masker.feed(b"step hunt") == b"step "
    assert masker.feed(b"ing\n") == b"hunting\n"


_TEXT = st.text("abc", max_size=40)


@given(st.lists(st.text("abc", min_size=4, max_size=7), max_size=3), st.lists(_TEXT, max_size=6))
def test_the_result_does_not_depend_on_the_cuts_and_no_secret_is_left(secrets: list[str], chunks: list[str]) -> None:
    cut, whole = Masker(secrets), Masker(secrets)
    got = b"".join(cut.feed(chunk.encode()) for chunk in chunks) + cut.flush()
    assert got == whole.feed("".join(chunks).encode()) + whole.flush()
    assert not any(secret.encode() in got for secret in secrets)
