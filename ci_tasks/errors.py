"""The expected errors. `ci_tasks.cli.exit_handler` turns each into a message and an exit code.

    CiTasksError                    what happened, where, and the next step
    ├── UsageError             2    a wrong command line or configuration
    │   ├── UnknownName        2    no such label, row, host or run: the nearest and the valid names
    │   ├── ConfigError        2    hosts.yaml: file, line, nearest valid key
    │   ├── WorkflowError      2    an invalid or unsupported workflow: job, step, line and text
    │   └── CheckoutError      2    no git, no checkout, no such revision
    ├── Blocked              125    the environment cannot do it; nothing is known about the code under test
    │   └── HostDataError    125    a host sent what no host of ours sends
    └── InternalError         70    a bug of ci-tasks in another thread; its traceback is in the log

Any other exception is a bug of ci-tasks: exit code 70 (EX_SOFTWARE of sysexits.h), with the traceback in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MOST_NAMES = 24
EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_BLOCKED = 125
EXIT_CANCELLED = 130
EXIT_CLOSED_PIPE = 141  # as a program that SIGPIPE ended: the result was not read, so it is not 0

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class CiTasksError(Exception):
    """An expected failure. `hint` is the next step, shown on a line of its own."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return printable(f"{self.message}\n{self.hint}" if self.hint else self.message)


class UsageError(CiTasksError):
    exit_code = EXIT_USAGE


class UnknownName(UsageError):
    """A name that is not in `valid`: the message suggests the nearest one and the hint lists
    them. It suggests `aliases` too, which mean one of them."""

    def __init__(
        self, kind: str, name: str, valid: Iterable[str], *, where: str = "", aliases: Iterable[str] = ()
    ) -> None:
        names = sorted(set(valid))
        message = f"unknown {kind} {name!r}{f' in {where}' if where else ''}{did_you_mean(name, [*names, *aliases])}"
        super().__init__(message, hint=f"valid: {some(names)}" if names else f"no {kind}s{' there' * bool(where)}")


class ConfigError(UsageError):
    """An error in hosts.yaml."""

    def __init__(self, message: str, *, file: str = "hosts.yaml", line: int | None = None, hint: str = "") -> None:
        super().__init__(f"{file}{f':{line}' if line else ''}: {message}", hint=hint)


class WorkflowError(UsageError):
    """An invalid or unsupported part of a workflow. `text` are the lines that the message quotes."""

    def __init__(
        self,
        message: str,
        *,
        file: str = "",
        job: str = "",
        step: str = "",
        line: int | None = None,
        text: str = "",
        hint: str = "",
    ) -> None:
        import textwrap

        location = f"{file}{f':{line}' if line else ''}"
        names = ", ".join(filter(None, (f"job {job}" if job else "", f"step {step!r}" if step else "")))
        quoted = textwrap.indent(textwrap.dedent(text.strip("\n")).rstrip(), "    ")
        head = ": ".join(filter(None, (location, names, message)))
        super().__init__(f"{head}\n{quoted}" if quoted else head, hint=hint)
        self.job, self.step, self.line, self.text = job, step, line, text


class CheckoutError(UsageError):
    """The checkout cannot be read: no git, not a repository, no such revision."""


class Blocked(CiTasksError):
    exit_code = EXIT_BLOCKED


class HostDataError(Blocked):
    """A host sent what no host of ours sends. The message names the host and what it sent."""


class InternalError(CiTasksError):
    exit_code = EXIT_BUG


def nearest(name: str, valid: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The valid name closest to `name`, upper and lower case aside; None if none is close."""
    import difflib

    by_lower = {option.lower(): option for option in valid}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """`; did you mean '…'?` for the end of a message about `name`, or "" if no valid name is close."""
    match = nearest(name, valid)
    return f"; did you mean {match!r}?" if match else ""


def some(names: Sequence[str], most: int = _MOST_NAMES, separator: str = ", ") -> str:
    """The names in one text; of more than `most` the first ones, and how many more there are."""
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def short(id: str) -> str:
    """A commit or a tree in a message."""
    return id[:12]


def truncated(text: str, longest: int) -> str:
    """`text` without its end if it has more than `longest` characters."""
    return text if len(text) <= longest else f"{text[: max(0, longest - 1)]}…"


def shortened(text: str, longest: int) -> str:
    """`text` without its middle if it has more than `longest` characters, cut between words."""
    if len(text) <= longest:
        return text
    begin = re.sub(r"(?<=\s)\S{1,40}$", "", text[: longest // 2]).rstrip()
    end = re.sub(r"^\S{1,40}(?=\s)", "", text[-(longest // 2) :]).lstrip()
    return f"{begin} … {len(text) - len(begin) - len(end):,} characters left out … {end}"


def printable(text: str) -> str:
    """`text` without control characters: text from elsewhere, such as a job's name, must not move the cursor."""
    return _CONTROL.sub("�", text)


def one_line(text: str) -> str:
    """`text` as a cell of a table or a line of a list, which text from elsewhere must not break."""
    return printable(" ".join(text.split()))
