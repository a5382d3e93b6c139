"""Command-line options, each declared once, and the options that several commands share.

A command has one frozen dataclass whose fields are options, `only: str | None = ONLY.field()`. Everything else is
derived from it: the parser's arguments, help, shell completion, validation, and what nox accepts after `--`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, get_type_hints

from ci_tasks import registry
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError, did_you_mean, shortened

T = TypeVar("T")
_MOST_DIGITS = 9  # of a number


@dataclass(frozen=True)
class Option:
    """One option. Its name is the field's, with dashes.

    `kind` is the type of its value: str, int, float, bool for a switch, tuple for an option that may be repeated.
    `unit` is what a number counts. `choices` are the valid values; `complete` refers to a function that returns
    candidates for the shell, "module:function" of (options so far, typed text). `commas` marks a value that may be a
    list separated by commas. `environment` names a variable that is used if the option is missing.

    `excludes` are options that cannot be used with it; `needs` names one that it requires. `hint` is the next step if
    the value is missing or invalid. An option of a `feature` exists if the feature does. `nox`: it is accepted after
    nox's `--`. `short` is its name of one letter, `-h`.
    """

    help: str = ""
    kind: type[Any] = str
    default: Any = None
    metavar: str = "TEXT"
    unit: str = ""
    minimum: int = 1
    choices: tuple[str, ...] = ()
    complete: str = ""
    commas: bool = False
    positional: bool = False
    required: bool = False
    environment: str = ""
    excludes: tuple[str, ...] = ()
    needs: str = ""
    hint: str = ""
    feature: str = ""
    nox: bool = False
    short: str = ""

    def field(self, **changes: Any) -> Any:
        """The option as a field of a command's dataclass, with `changes` of its own attributes."""
        option = replace(self, **changes) if changes else self
        metadata = {"option": option}
        if option.required:
            return dataclasses.field(metadata=metadata, kw_only=True)
        return dataclasses.field(default=option.default, metadata=metadata, kw_only=True)

    @property
    def full_help(self) -> str:
        """Its help with its default, and whether it may be repeated."""
        default = f" (default: {self.default})" if self.default and self.default is not True else ""
        return f"{self.help}{default}{'; repeatable' if self.kind is tuple and not self.positional else ''}"

    def convert(self, flag: str, value: Any) -> Any:
        """The typed value of the text given for `flag`. Raises UsageError."""
        if self.kind in (bool, tuple):
            return self.kind(value)
        for part in (value.split(",") if self.commas else [value]) if self.choices else ():
            if part.strip() not in self.choices:
                message = f"invalid value {part.strip()!r} for {flag}{did_you_mean(part.strip(), self.choices)}"
                raise UsageError(message, hint=f"valid: {', '.join(self.choices)}")
        if self.kind is str:
            return value
        digits = value.replace(".", "", 1) if self.kind is float else value
        is_number = value.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS
        if not is_number or (self.kind is int and int(value) < self.minimum):
            what = "whole number" if self.kind is int else "number"
            of = f" of {self.unit}" if self.unit else ""
            at_least = f" of at least {self.minimum}" if self.minimum > 1 else ""
            example = self.hint or f"for example {flag} {max(self.minimum, 4)}"
            raise UsageError(f"{flag} takes a {what}{of}{at_least}, not {shortened(value, 60)!r}", hint=example)
        return self.kind(value)


def text(help: str, metavar: str = "TEXT", **more: Any) -> Option:
    return Option(help, str, metavar=metavar, **more)


def number(help: str, unit: str, **more: Any) -> Option:
    """A whole number, 1 or more."""
    return Option(help, int, unit=unit, **{"metavar": "N", **more})


def switch(help: str, **more: Any) -> Option:
    return Option(help, bool, default=False, **more)


def repeatable(help: str, metavar: str, **more: Any) -> Option:
    return Option(help, tuple, default=(), metavar=metavar, **more)


def positional(help: str, **more: Any) -> Option:
    return Option(help, positional=True, **{"required": True, **more})


_COMPLETION = "ci_tasks.cli.program"

# The checkout and its workflow.
REPO = text("the checkout (default: CI_TASKS_REPO, the current directory, ../slime, the embedded sample)", "DIR")
REV = text("read the checkout at this revision instead of its working tree", "REV")
WORKFLOW = text("the workflow file (default: the project's, such as .github/workflows/pr-test.yml)", "FILE")
BASE = text("find changed tests by comparing with this revision (default: origin/main)", "REV", nox=True)
LABEL = positional(
    "a label of the workflow, its PR label or its job name; `ci-tasks jobs` lists them",
    complete=f"{_COMPLETION}:labels",
    hint="`ci-tasks jobs` lists the labels",
)
_ONLY = "only the row of this name, else those whose names contain it; several with commas"
ONLY = text(_ONLY, commas=True, complete=f"{_COMPLETION}:rows")
RUN_NEEDS = switch("run the jobs here whose outputs decide the rows")

# Where and how rows run.
_HOSTS = f"{_COMPLETION}:hosts"
HOST = text("a host of hosts.yaml", "HOST", commas=True, complete=_HOSTS, hint="`ci-tasks hosts` lists them", nox=True)
IMAGE = text("run in this container image instead of CI's", "IMAGE", nox=True)
KEEP = switch("keep the container and workspace of a failed row, for `shell` and `retry`", nox=True)
DETACH = switch("start the rows and return at once; `attach` fetches the results", nox=True)
REPEAT = number("number of repetitions", "repetitions", hint="for example --repeat 20", nox=True)

# Existing runs.
RUN = positional(
    "a run's id, a batch, a prefix of either, or `last`",
    complete=f"{_COMPLETION}:runs",
    hint="`ci-tasks runs` lists them, and `last` is the newest",
)
ONE_RUN = replace(RUN, help="a run's id, a prefix of it, or `last`")
JSON = switch("print JSON; messages go to standard error")
_BRIEF = "print fewer than 2,000 tokens for an assistant, with log text marked as quoted data"
BRIEF = switch(_BRIEF, excludes=("json",))
EVENTS = text("write events as JSON lines to this file, or - for standard output", "FILE")

# A job that failed in CI.
FAILED_LOG = text("a saved job log, the zip of a run, or - for standard input (`gh run view RUN --log`)", "FILE")
FAILED_JOB = text("the job, if the log holds several", "JOB")
_FAILED_URL = "a failed job, run or pull request on GitHub; GH_TOKEN or `gh auth login` gives access"
FAILED_URL = text(_FAILED_URL, "URL", excludes=("log", "job"))


def options_class(function: Callable[..., int]) -> type[Any]:
    """The dataclass that annotates the only parameter of a command's function."""
    hints = get_type_hints(function)
    options: type[Any] = next(hint for name, hint in hints.items() if name != "return")
    return options


def options_of(options: type[Any]) -> dict[str, Option]:
    """Field name → option of a command's dataclass, without options of features that do not exist: the command's own
    come first, the shared ones last."""
    names = [name for owner in options.__mro__ for name in getattr(owner, "__annotations__", ())]
    by_name = {field.name: field.metadata["option"] for field in dataclasses.fields(options)}
    return {
        name: by_name[name]
        for name in dict.fromkeys(names)
        if not by_name[name].feature or any(each.name == by_name[name].feature for each in registry.features())
    }


def flag_of(name: str, option: Option) -> str:
    """As typed: `--fail-fast`, or LABEL for a positional."""
    return name.upper() if option.positional else f"--{dashed(name)}"


def typed(name: str, option: Option) -> str:
    """As help shows it: `--host HOST`, `-h, --help [COMMAND]`, LABEL."""
    flag = f"{option.short}, {flag_of(name, option)}" if option.short else flag_of(name, option)
    return flag if option.positional or option.kind is bool else f"{flag} {option.metavar}"


def dashed(name: str) -> str:
    """An option's name by its field's; `with_` is the option `with`, a word of Python's."""
    return name.rstrip("_").replace("_", "-")


def build(options: type[T], values: Mapping[str, Any], command: str) -> T:
    """The typed options of `command` from the values of a command line, by field name. Raises UsageError, also for an
    empty text: it is mostly a variable that was meant to have a value."""
    declared = options_of(options)
    given: dict[str, Any] = {}
    for name, option in declared.items():
        value = values.get(name)
        if isinstance(value, str) and not (value.strip(", ") if option.commas else value):
            raise UsageError(f"{command}: {flag_of(name, option)} is empty", hint=option.hint or option.help)
        if value := value or os.environ.get(option.environment or " "):
            given[name] = value
    for name, option in declared.items():
        _check(name, option, declared, given, command)
    return options(**{key: declared[key].convert(flag_of(key, declared[key]), value) for key, value in given.items()})


def _check(name: str, option: Option, declared: Mapping[str, Option], values: Mapping[str, Any], command: str) -> None:
    """Check one option against the others. Raises UsageError."""
    flag = flag_of(name, option)
    if name not in values:
        if option.required:
            where = f" (or {option.environment})" if option.environment else ""
            raise UsageError(f"{command} needs {typed(name, option)}{where}", hint=option.hint)
        return
    if option.needs and option.needs not in values:
        raise UsageError(f"{flag} needs {typed(option.needs, declared[option.needs])}")
    for other in option.excludes:
        if other in values and other in declared:
            message = f"{flag} and {flag_of(other, declared[other])} cannot be combined"
            raise UsageError(message, hint="use one of them")
