"""What may leave this process: known secrets are masked, and bytes of a job, a host or a workflow must not control the
terminal.

A host masks what leaves it. It may mask less, or may have been given other values than the caller has here, so
everything is masked once more on arrival.

Colours (ECMA-48's SGR), carriage returns and "erase to the end of the line", which progress bars use, pass. Any other
control character is shown as text, `\\x1b]52;…`: it could set the clipboard or the title, clear the screen, or make the
terminal type an answer. Characters that reorder text (Unicode's bidirectional controls) make a line look like another
one, and are shown as text too.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from ci_tasks.agent.mask import is_secret_name, mask_text

_ALLOWED = r"\[(?:[0-9;:]{0,64}m|0?K)"  # after an escape character
_BEGUN = r"\x1b(?:\[[0-9;:]{0,64})?\Z"  # an allowed sequence whose end is still to come
_BIDIRECTIONAL = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
# It begins with a set, for which `re` has a quick search: an alternation there takes five times as long.
_CONTROL = rf"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{_BIDIRECTIONAL}]((?<=\x1b){_ALLOWED})?"
_PLAIN = b"\t\n\r" + bytes(range(0x20, 0x7F))  # bytes that every escape leaves alone
PROGRAM = "ci-tasks"
_IN_JSON = rf"[\x7f-\x9f{_BIDIRECTIONAL}]"


def escape(text: str) -> str:
    """`text` with control sequences as text."""
    return re.sub(_CONTROL, _visible, text)


def json_document(value: Any) -> str:
    """JSON that `escape` leaves as it is: escaped by JSON's own rules."""
    import json  # completion prints none

    text = json.dumps(value, indent=2, ensure_ascii=False)
    return re.sub(_IN_JSON, lambda match: f"\\u{ord(match[0]):04x}", text)


def _visible(match: re.Match[str]) -> str:
    if match[1]:
        return match[0]
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class LogFilter:
    """Escapes a log that comes in pieces. Bytes that are not UTF-8 are shown as `\\x9b` too."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._begun = ""

    def feed(self, chunk: bytes) -> bytes:
        if not self._begun and not self._decoder.getstate()[0] and not chunk.translate(None, _PLAIN):
            return chunk  # most of a log; to decode and search it takes twenty times as long
        return self._escape(self._decoder.decode(chunk))

    def flush(self) -> bytes:
        """What was held back, since its end did not come."""
        return self._escape(self._decoder.decode(b"", final=True), final=True)

    def _escape(self, text: str, *, final: bool = False) -> bytes:
        text, self._begun = self._begun + text, ""
        if not final and (begun := re.compile(_BEGUN).search(text, max(0, len(text) - 80))):
            text, self._begun = text[: begun.start()], begun[0]
        return escape(text).encode("utf-8", "backslashreplace")


class SafeStream:
    """A text stream that escapes what is written to it and masks secrets in it; in all else the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(escape(masked(text)))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def safe_streams() -> Iterator[None]:
    """Standard output and error escape what is printed while the block lasts."""
    before = sys.stdout, sys.stderr
    wrapped = tuple(stream if isinstance(stream, SafeStream | None) else SafeStream(stream) for stream in before)
    sys.stdout, sys.stderr = wrapped
    try:
        yield
    finally:
        if (sys.stdout, sys.stderr) == wrapped:
            sys.stdout, sys.stderr = before


def terminal_width() -> int | None:
    """The columns of the terminal that standard output is, or COLUMNS; None of a file or a pipe."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def terminal_of(stream: TextIO) -> TextIO:
    """The stream below, for output whose control sequences are our own."""
    return stream._stream if isinstance(stream, SafeStream) else stream


# -- secrets -----------------------------------------------------------------------------------------------------------

MASK = "***"
_SECRET_NAME = r"(?i)TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY"
# Secrets that are recognized by their form: a login or a query in an address, tokens of GitHub and Hugging Face.
_FORMS = (
    r"(?<=://)[^/\s@]+(?=@)|(?<=\?)[^\s\"'?]*=[^\s\"']*|\bgh[pousr]_\w{16,}|\bgithub_pat_\w{16,}|\bhf_[A-Za-z0-9]{16,}"
    r"|(?<=[Bb]earer )\S+"
)
_LOGIN = r"://[^/\s@]+@"
_added_secrets: set[str] = set()


def add_secrets(values: Iterable[str]) -> None:
    """Tokens from a file or a program, variables that hosts.yaml or a workflow names."""
    _added_secrets.update(value for value in values if value)


def add_secret_variables(names: Iterable[str]) -> None:
    """The variables of our environment that a plan names as secrets."""
    add_secrets(os.environ.get(name, "") for name in names)


def secret_values() -> list[str]:
    """Added secrets, and values of variables with secret names, but not paths of files that hold one."""
    variables = os.environ.copy().items()
    named = (value for name, value in variables if value[:1] not in ("", "/") and re.search(_SECRET_NAME, name))
    return sorted({*_added_secrets, *named})


def is_private(name: str, value: str) -> bool:
    """Whether a variable may be a secret, by its name or by its value."""
    by_name = re.search(_SECRET_NAME, name) is not None or is_secret_name(name)
    is_hidden = MASK in value or "<secret " in value or masked(value) != value
    return by_name or is_hidden or re.search(_LOGIN, value) is not None


def masked(text: str) -> str:
    known = secret_values()
    return mask_text(known, text) if known else text


def masked_with_forms(text: str) -> str:
    """`text` without known secrets, and without what has the form of one."""
    return re.sub(_FORMS, MASK, masked(text))
