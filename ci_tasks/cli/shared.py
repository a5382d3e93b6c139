"""What commands share: options that select a checkout or give what only GitHub knows, and output for programs."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import REPO, REV, WORKFLOW, number, repeatable, switch, text
from ci_tasks.errors import UsageError
from ci_tasks.given_values import GivenValues, OverlaySource, by_job
from ci_tasks.resources import user_path
from ci_tasks.safe_output import json_document

if TYPE_CHECKING:
    from ci_tasks.config import Config
    from ci_tasks.run.checkout_source import CheckoutSource
    from ci_tasks.run.events import EventStream

_TEST = re.compile(r"[\w./-]+\.py(::[\w\[\].:/+-]+)*")  # what pytest's -k can read
_VALUE = re.compile(r"[^=]+=.*", re.DOTALL)
_OUTPUT_VALUE = re.compile(r"[^.=]+\.[^=]+=.*", re.DOTALL)
_OVERLAY = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*=.*\S.*", re.DOTALL)
_IMPORTED = "NAME is a package as it is imported or installed, for example --with sglang=~/sglang"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+=.*\S.*", re.DOTALL)
_OF_NVIDIA = "for example --workflow-dir NVIDIA-NeMo/FW-CI-templates=~/FW-CI-templates"
_WORKFLOW_DIR = "a checkout of another repository whose workflows a job calls"
_OUTPUTS_FROM = "take outputs of other jobs from a CI job's log, or from a failed job at this URL"
_EVENT = "a JSON file with GitHub's payload of the pull_request event, or part of it"
_GPUS = "number of GPUs per row, if the workflow does not say it; 0: needs none of its runner's"
_NO_GPUS = "for example --gpus 8, or --gpus 0 for none"
_NO_PROBE = "do not load the probe into Python processes: no evidence from inside the job"
_TESTS = "run only this file or test of rows that run pytest"
_WITH = "use this working tree, uncommitted changes included, for the package NAME (sglang, megatron-core, …)"
_GIVE_UP = "minutes that rows wait for a host that is unreachable or not ready"


# -- options -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckoutOptions:
    """Options of every command that reads a checkout at any revision."""

    repo: str | None = REPO.field()
    rev: str | None = REV.field()
    workflow: str | None = WORKFLOW.field()


@dataclass(frozen=True)
class GivenOptions:
    """Options of every command that reads a workflow for rows."""

    var: tuple[str, ...] = repeatable("a variable of GitHub's `vars`", "NAME=VALUE", nox=True).field()
    input: tuple[str, ...] = repeatable("an input of the workflow", "NAME=VALUE", nox=True).field()
    output: tuple[str, ...] = repeatable("an output of a job that is not run here", "JOB.NAME=VALUE", nox=True).field()
    github_event: str | None = text(_EVENT, "FILE", nox=True).field()
    outputs_from: str | None = text(_OUTPUTS_FROM, "URL|LOG", nox=True).field()
    workflow_dir: tuple[str, ...] = repeatable(_WORKFLOW_DIR, "OWNER/REPO=DIR", nox=True).field()


@dataclass(frozen=True)
class OverlayOptions(GivenOptions):
    """Options of every command that runs rows on working trees, or plans them."""

    gpus: int | None = number(_GPUS, "GPUs", minimum=0, hint=_NO_GPUS, nox=True).field()
    no_probe: bool = switch(_NO_PROBE, nox=True).field()
    no_persist: bool = switch("open a new connection, and close it at the end", nox=True).field()
    with_: tuple[str, ...] = repeatable(_WITH, "NAME=DIR", excludes=("no_probe",), nox=True).field()
    test: tuple[str, ...] = repeatable(_TESTS, "FILE[::NAME]", nox=True).field()


@dataclass(frozen=True)
class RowOptions(OverlayOptions):
    """Options of every command that runs rows."""

    give_up: int = number(_GIVE_UP, "minutes", default=60, metavar="MINUTES", nox=True).field()


def open_checkout(options: Any) -> tuple[Config, CheckoutSource]:
    """hosts.yaml, and the checkout's workflow, both with the values that the options give. Raises UsageError."""
    from ci_tasks.run.checkout_source import open_source
    from ci_tasks.run.hosts_files import open_config

    config = with_given(open_config(options.repo), options)
    return config, open_source(options.repo, options.rev, options.workflow, config.given)


def with_given(config: Config, options: GivenOptions) -> Config:
    """What hosts.yaml says, with the values of the options over its own. Raises UsageError."""
    if isinstance(options, OverlayOptions) and options.no_persist:
        config = config.with_hosts(persist=False)
    if isinstance(options, RowOptions):
        config = config.with_hosts(give_up_minutes=options.give_up)
    return replace(config, given=_given(options))


def _given(options: GivenOptions) -> GivenValues:
    variables = _pairs("--var", options.var, _VALUE, "NAME=VALUE")
    inputs = _pairs("--input", options.input, _VALUE, "NAME=VALUE")
    by_output = _pairs("--output", options.output, _OUTPUT_VALUE, "JOB.NAME=VALUE")
    sources = {f"vars.{name}": "--var" for name in variables} | {f"inputs.{name}": "--input" for name in inputs}
    sources |= {f"needs.{name.replace('.', '.outputs.', 1)}": "--output" for name in by_output}
    event = _payload(options.github_event) if options.github_event else {}
    if event:
        sources["github.event"] = f"--github-event {options.github_event}"
    dirs = _directories("--workflow-dir", options.workflow_dir, _REPOSITORY, "OWNER/REPO=DIR", _OF_NVIDIA)
    log = options.outputs_from or ""
    given = GivenValues(variables, inputs, by_job(by_output), event, sources, workflow_dirs=dirs, outputs_from=log)
    if not isinstance(options, OverlayOptions):
        return given
    for test in options.test:
        if not _TEST.fullmatch(test):
            example = "for example --test tests/test_a.py::test_b"
            raise UsageError(f"--test takes FILE or FILE::NAME, not {test!r}", hint=example)
    trees = _directories("--with", options.with_, _OVERLAY, "NAME=DIR", _IMPORTED)
    overlays = tuple(map(OverlaySource, trees, trees.values()))
    return replace(given, overlays=overlays, gpus=options.gpus, tests=options.test)


def _directories(flag: str, words: Sequence[str], form: re.Pattern[str], shape: str, hint: str) -> dict[str, str]:
    """Name → directory of the words NAME=DIR. Raises UsageError."""
    paths = {name: user_path(path).absolute() for name, path in _pairs(flag, words, form, shape, hint).items()}
    for name, path in paths.items():
        if not path.is_dir():
            raise UsageError(f"{flag} {name}: {path} is no directory", hint="name the root of a checkout")
    return {name: str(path.resolve()) for name, path in paths.items()}


def _pairs(
    flag: str, words: Sequence[str], form: re.Pattern[str], shape: str, hint: str = "NAME= gives an empty value"
) -> dict[str, str]:
    """Name → value of the words NAME=VALUE. Raises UsageError for any other word."""
    pairs: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not form.fullmatch(word):
            raise UsageError(f"{flag} takes {shape}, not {word!r}", hint=hint)
        if name in pairs:
            raise UsageError(f"{flag} names {name} twice", hint="give each one value")
        pairs[name] = value
    return pairs


def _payload(file: str) -> dict[str, object]:
    try:
        payload = json.loads(user_path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--github-event: cannot read {file} as JSON: {error}") from None
    if not isinstance(payload, dict):
        raise UsageError(f"--github-event: {file} is not a JSON object", hint='for example {"number": 12}')
    return payload


# -- output ------------------------------------------------------------------------------------------------------------


def print_json(value: Any, *, when: bool = True, versioned: bool = True) -> None:
    """Print a record, a sequence of records, or what is JSON already, `when` a program asked for it."""
    if not when:
        return
    if is_dataclass(value) and not isinstance(value, type):
        value = encode(value, versioned=versioned)
    elif not isinstance(value, dict):
        value = [encode(one, versioned=versioned) if is_dataclass(one) else one for one in value]
    print(json_document(value))


def print_result(value: Any, lines: Callable[[], Iterable[str]], *, as_json: bool, versioned: bool = False) -> None:
    """Print it as JSON, or as the lines for people."""
    print_json(value, versioned=versioned) if as_json else print("\n".join(lines()))


def perform(run: Callable[[EventStream | None], Any], options: Any) -> int:
    """Call `run` with the stream of --events; what is for people is on standard error if a program reads standard
    output. It returns a record with an exit code, or the code and what --json prints, None for nothing."""
    from ci_tasks.run.events import STDOUT, open_events

    if options.json and options.events == STDOUT:
        raise UsageError("--json and --events - cannot be combined: both would be on standard output")
    with people_read_stderr(options.json or options.events == STDOUT), open_events(options.events) as stream:
        result = run(stream)
        code, record = result if isinstance(result, tuple) else (int(result.exit_code or 0), result)
        if stream:
            stream.exit_code = code
    print_json(record, when=options.json and record is not None)
    return int(code)


def people_read_stderr(when: bool) -> AbstractContextManager[object]:
    """While the block lasts, what is printed for people goes to standard error: standard output is for a program."""
    return contextlib.redirect_stdout(sys.stderr) if when else contextlib.nullcontext()
