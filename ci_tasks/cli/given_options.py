"""The options that give what only GitHub knows, with the values of hosts.yaml; and overlays."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import GIVE_UP, GPUS, NO_PERSIST, NO_PROBE, TEST, WITH, repeatable, text
from ci_tasks.errors import UsageError
from ci_tasks.given_values import GivenValues, OverlaySource
from ci_tasks.resources import user_path

if TYPE_CHECKING:
    from ci_tasks.config import Config

_TEST = re.compile(r"[\w./-]+\.py(::[\w\[\].:/+-]+)+")  # what pytest's -k can read
_NAME, _OUTPUT_NAME = re.compile(r".+"), re.compile(r"[^.]+\..+")
_PACKAGE = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")
_EMPTY = "NAME= gives an empty value"
_EVENT = "GitHub's payload of the pull_request event, or a part of it, as JSON"
_IMPORTED = "NAME is a package as it is imported or installed, for example --with sglang=~/sglang"


def _value(help: str, metavar: str) -> Any:
    return repeatable(f"{help}; repeatable", metavar, nox=True, last=True).field()


@dataclass(frozen=True)
class GivenOptions:
    """Options of every command that reads a workflow for rows."""

    var: tuple[str, ...] = _value("a variable of GitHub's `vars`", "NAME=VALUE")
    input: tuple[str, ...] = _value("an input of the workflow", "NAME=VALUE")
    output: tuple[str, ...] = _value("an output of a job that is not run here", "JOB.NAME=VALUE")
    github_event: str | None = text(_EVENT, "FILE", nox=True, last=True).field()


@dataclass(frozen=True)
class OverlayOptions(GivenOptions):
    """Options of every command that runs rows on working trees, or plans them."""

    gpus: int | None = GPUS.field(last=True)
    no_probe: bool = NO_PROBE.field(last=True)
    no_persist: bool = NO_PERSIST.field(last=True)
    with_: tuple[str, ...] = WITH.field()


@dataclass(frozen=True)
class RowOptions(OverlayOptions):
    """Options of every command that runs rows."""

    test: tuple[str, ...] = TEST.field()
    give_up: int = GIVE_UP.field(last=True)


def with_given(config: Config, options: GivenOptions) -> Config:
    """What hosts.yaml says, with the values of the options over its own. Raises UsageError."""
    if isinstance(options, OverlayOptions) and options.no_persist:
        config = config.with_hosts(persist=False)
    if isinstance(options, RowOptions):
        config = config.with_hosts(give_up_minutes=options.give_up)
    return replace(config, given=config.given.under(_given(options)))


def _given(options: GivenOptions) -> GivenValues:
    variables = _pairs("--var", options.var, _NAME, "NAME=VALUE")
    inputs = _pairs("--input", options.input, _NAME, "NAME=VALUE")
    outputs: dict[str, dict[str, str]] = {}
    for name, value in _pairs("--output", options.output, _OUTPUT_NAME, "JOB.NAME=VALUE").items():
        job, _, output = name.partition(".")
        outputs.setdefault(job, {})[output] = value
    event = _payload(options.github_event) if options.github_event else {}
    sources = {
        **{f"vars.{name}": "--var" for name in variables},
        **{f"inputs.{name}": "--input" for name in inputs},
        **{f"needs.{job}.outputs.{name}": "--output" for job, values in outputs.items() for name in values},
        **({"github.event": f"--github-event {options.github_event}"} if event else {}),
    }
    if not isinstance(options, OverlayOptions):
        return GivenValues(variables, inputs, outputs, event, sources)
    overlays = overlay_sources(options.with_)
    tests = options.test if isinstance(options, RowOptions) else ()
    for test in tests:
        if not _TEST.fullmatch(test):
            example = "for example --test tests/test_a.py::test_b"
            raise UsageError(f"--test takes FILE::NAME, not {test!r}", hint=example)
    return GivenValues(variables, inputs, outputs, event, sources, overlays, options.gpus, tests)


def overlay_sources(words: Sequence[str]) -> tuple[OverlaySource, ...]:
    """The working trees of `--with`. Raises UsageError."""
    sources = []
    for name, directory in _pairs("--with", words, _PACKAGE, "NAME=DIR").items():
        path = user_path(directory).absolute()
        if not path.is_dir():
            what = "is not a directory" if path.exists() else "does not exist"
            raise UsageError(f"--with {name}: {path} {what}", hint="name the root of a checkout")
        sources.append(OverlaySource(name, str(path.resolve())))
    return tuple(sources)


def _pairs(flag: str, words: Sequence[str], form: re.Pattern[str], shape: str) -> dict[str, str]:
    """Name → value of the words NAME=VALUE. Raises UsageError for any other word."""
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and form.fullmatch(name) and (value.strip() or form is not _PACKAGE)):
            raise UsageError(f"{flag} takes {shape}, not {word!r}", hint=_IMPORTED if form is _PACKAGE else _EMPTY)
        if name in pairs:
            raise UsageError(f"{flag} names {name} twice", hint="give each one value")
        pairs[name] = value
    return pairs


def _payload(file: str) -> dict[str, object]:
    try:
        payload = json.loads(user_path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--github-event: cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--github-event: {file} is not JSON: {error}") from None
    if not isinstance(payload, dict):
        raise UsageError(f"--github-event: {file} is not a JSON object", hint='for example {"number": 12}')
    return payload
