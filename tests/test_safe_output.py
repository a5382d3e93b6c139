"""What reaches a terminal of what a job, a host or a workflow wrote; and that nothing which is printed has a secret."""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_tasks import safe_output
from ci_tasks.cli import exit_handler
from ci_tasks.errors import UsageError
from ci_tasks.safe_output import LogFilter, escape, json_document, safe_streams

# What reaches a terminal, and how it is shown: as it is, or as text.
SHOWN = {
    "text, tab and newline": ("a\tb\n", None),
    "a carriage return, of progress bars": ("10 %\r20 %\r\n", None),
    "a colour": ("\x1b[1;31mred\x1b[0m\x1b[m", None),
    "a colour of 24 bits": ("\x1b[38;2;1;2;3mx\x1b[38:5:9m", None),
    "erasing to the end of the line": ("10 %\r\x1b[K20 %\x1b[0K", None),
    "other scripts": ("日本 – é 🙂", None),
    "the clipboard": ("\x1b]52;c;cm0gLXJm\x07", "\\x1b]52;c;cm0gLXJm\\x07"),
    "the title": ("\x1b]0;root\x1b\\", "\\x1b]0;root\\x1b\\"),
    "a link": ("\x1b]8;;http://x\x07y", "\\x1b]8;;http://x\\x07y"),
    "clearing the screen": ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
    "clearing the line": ("\x1b[2K", "\\x1b[2K"),
    "the alternate screen": ("\x1b[?1049h", "\\x1b[?1049h"),
    "a question that the terminal answers": ("\x1b[6n\x1b[c\x05", "\\x1b[6n\\x1b[c\\x05"),
    "a device control string": ("\x1bP+q544e\x1b\\", "\\x1bP+q544e\\x1b\\"),
    "a reset": ("\x1bc", "\\x1bc"),
    "backspace and bell": ("rm\b\b\x07", "rm\\x08\\x08\\x07"),
    "the one-character form of a sequence": ("\x9b2J\x9d0;x\x9c", "\\x9b2J\\x9d0;x\\x9c"),
    "text that reads backwards": ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
    "a colour of no end": ("\x1b[" + "1;" * 40 + "m", "\\x1b[" + "1;" * 40 + "m"),
    "an escape at the end": ("x\x1b", "x\\x1b"),
}


@pytest.mark.parametrize(("text", "shown"), SHOWN.values(), ids=SHOWN)
@given(cuts=st.lists(st.integers(0, 90), max_size=6))
def test_control_sequences_are_shown_as_text_and_what_cannot_harm_passes_wherever_a_log_is_cut(
    text: str, shown: str | None, cuts: list[int]
) -> None:
    data, expected = text.encode(), text if shown is None else shown
    assert escape(text) == expected
    at = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    log = LogFilter()
    assert (
        b"".join(log.feed(data[start:end]) for start, end in itertools.pairwise(at)) + log.flush() == expected.encode()
    )


@given(st.binary(max_size=60))
def test_any_bytes_of_a_log_become_harmless_text(data: bytes) -> None:
    log = LogFilter()
    shown = (log.feed(data) + log.flush()).decode()
    assert escape(shown) == shown


def test_bytes_that_are_not_utf_8_are_shown() -> None:
    log = LogFilter()
    assert log.feed(b"caf\xe9 \x9b2J\n") + log.flush() == b"caf\\xe9 \\x9b2J\n"
    # The beginning of a character that does not go on in the next piece stays before it.
    assert log.feed(b"caf\xe9") + log.feed(b" plain\n") + log.flush() == b"caf\\xe9 plain\n"


@given(st.text(max_size=40))
def test_json_keeps_its_values_and_nothing_in_it_is_left_to_escape(text: str) -> None:
    document = json_document({"text": text})
    assert escape(document) == document and json.loads(document) == {"text": text}


def test_prints_are_escaped_while_a_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with safe_streams(), safe_streams():
        print("a\x1b[2Jb")
        print("c\x07", file=sys.stderr)
        sys.stdout.writelines(["\x05\n"])
    print("\x07", end="")
    assert tuple(capsys.readouterr()) == ("a\\x1b[2Jb\n\\x05\n\x07", "c\\x07\n")


# -- secrets -----------------------------------------------------------------------------------------------------------

SECRET = "correct-horse"


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in safe_output.secret_values():
        monkeypatch.delenv(next(name for name in os.environ if os.environ[name] == value))


def test_variables_that_a_plan_names_are_known_as_far_as_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN_NAME", SECRET)
    safe_output.add_secret_variables(["PLAIN_NAME", "NOT_SET"])
    assert safe_output.secret_values() == [SECRET]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HF_TOKEN", SECRET, [SECRET]),
        ("MY_API_KEY", SECRET, [SECRET]),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json", []),  # a path says nothing
        ("HF_TOKEN", "", []),
        ("KEYBOARD", "qwerty", []),
    ],
)
def test_a_variable_is_a_secret_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: list[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert safe_output.secret_values() == expected


def test_encoded_forms_are_masked_as_on_a_host() -> None:
    safe_output.add_secrets([SECRET])
    encoded = base64.b64encode(SECRET.encode()).decode()
    assert safe_output.masked(f"{SECRET} {encoded}") == "*** ***Q=="  # the last character depends on what follows
    assert safe_output.masked("nothing") == "nothing"


def _print(text: str) -> int:
    print(text)
    print(text, file=sys.stderr)
    return 0


def _fail(text: str) -> int:
    raise UsageError(text, hint=text)


def _break(text: str) -> int:
    raise RuntimeError(["docker", "login", "-p", text])


@pytest.mark.parametrize("command", [_print, _fail, _break])
def test_no_command_shows_a_secret_nor_does_an_error_of_it(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    safe_output.add_secrets([SECRET])
    exit_handler.run(lambda: command(f"it is {SECRET}"))  # type: ignore[operator]
    said = "".join(capsys.readouterr())
    assert SECRET not in said
