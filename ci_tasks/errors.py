"""Everything that is expected to go wrong, as one tree; `ci_tasks.door` turns it into words and an exit code.

    CiTasksError                    what happened, where, and the next step
    ├── UsageError             2    the question cannot be answered as it was asked
    │   ├── UnknownName        2    no such label, row, host, run: names the nearest and the valid ones
    │   ├── ConfigError        2    hosts.yaml: file, line, nearest valid key
    │   ├── WorkflowError      2    a workflow that is not understood: job, step, line and the text
    │   └── CheckoutError      2    no git, no checkout, no such revision
    └── Blocked              125    the environment cannot do it; says nothing about the code under test

Anything else that escapes is a bug of ours and leaves with exit code 3.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

EXIT_USAGE = 2
EXIT_BUG = 3
EXIT_BLOCKED = 125
EXIT_CANCELLED = 130

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
    """A name that does not exist among `valid`; the message has the nearest one and the hint lists them all."""

    def __init__(self, kind: str, name: str, valid: Iterable[str], *, where: str = "") -> None:
        names = sorted(set(valid))
        message = f"no {kind} {name!r}{f' in {where}' if where else ''}{did_you_mean(name, names)}"
        super().__init__(message, hint=f"valid: {', '.join(names)}" if names else f"there is no {kind} at all")


class ConfigError(UsageError):
    """hosts.yaml says something that has no meaning."""

    def __init__(self, message: str, *, file: str = "hosts.yaml", line: int | None = None, hint: str = "") -> None:
        super().__init__(f"{file}{f':{line}' if line else ''}: {message}", hint=hint)


class WorkflowError(UsageError):
    """A workflow, or a part of it, that would have to be guessed at."""

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
        place = f"{file}{f':{line}' if line else ''}"
        names = ", ".join(part for part in (f"job {job}" if job else "", f"step {step!r}" if step else "") if part)
        head = ": ".join(part for part in (place, names, message) if part)
        shown = textwrap.indent(textwrap.dedent(text.strip("\n")).rstrip(), "    ")
        super().__init__(f"{head}\n{shown}" if shown else head, hint=hint)
        self.job, self.step, self.line, self.text = job, step, line, text


class CheckoutError(UsageError):
    """The checkout cannot be read: no git, not a repository, no such revision."""


class Blocked(CiTasksError):
    exit_code = EXIT_BLOCKED


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that was probably meant, or None."""
    import difflib

    by_lower = {option.lower(): option for option in valid}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The end of a message about `name`; empty where none of `valid` is near."""
    near = nearest(name, valid)
    return f"; did you mean {near!r}?" if near else ""


def printable(text: str) -> str:
    """`text` as a terminal may have it: what others wrote, such as a job's name, must not move its cursor."""
    return _CONTROL.sub("�", text)
