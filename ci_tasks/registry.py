"""The registry of features: each folder of `ci_tasks.features` declares what it adds. The core imports none of them.

A folder's `__init__` holds only `FEATURE = Feature(...)`. References are "module:attribute" and are imported on first
use, so that listing commands is fast. The core works without any of the folders.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from ci_tasks.agent.quick_dataclass import dataclass

if TYPE_CHECKING:
    from ci_tasks.workflow.model import Workflow
    from ci_tasks.workflow.suite import Suite


@dataclass(frozen=True)
class Command:
    """A command. `heading` is its group in help; `function` refers to a function whose one argument is the options (see
    ci_tasks.cli.options). `json` are the records that --json prints, "module:Record" or "module:Record[]" for a list,
    more than one if an option decides; `exit_codes` refers to a mapping from words to the codes of its own."""

    name: str
    heading: str
    summary: str
    function: str
    json: tuple[str, ...] = ()
    exit_codes: str = ""


@dataclass(frozen=True)
class Session:
    """A nox session that runs `command_line` of the program, followed by nox's posargs."""

    name: str
    summary: str
    command_line: tuple[str, ...]


@dataclass(frozen=True)
class MetricFormat:
    """A trainer's way to log metrics, one line a step: `words` is what RE2 finds in such a line, `read` gives its step
    and values, or None for any other line."""

    words: bytes
    read: Callable[[bytes], tuple[int, dict[str, float]] | None]


@dataclass(frozen=True)
class Feature:
    """What a feature adds to the core. References are "module:attribute", or "" if it adds nothing of that kind.

    `needs` are the names of the features that it requires. `before_rows` is called before the rows of a host start: see
    `ci_tasks.run.prepare.RowPlanner.before_rows`. `run_summary` is called by `attach` with each RunRecord and the run's
    directory: it prints what a run of the feature's shows, and returns its exit code, None for a run that is none of
    its. `run_report` gives the lines that `report` adds for a run's directory, none for a run that is none of the
    feature's. `ci_history` gives the lines that `triage --url` adds for a URL and its triage, `ci_row_history` the
    lines of `compare --ci`. `suite` is a `workflow.suite.Suite`, `metric_format` a `MetricFormat`; `hang_analysis` is a
    function of the type in `results.judge_run`.
    """

    name: str
    needs: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()
    nox_sessions: tuple[Session, ...] = ()
    before_rows: str = ""
    run_summary: str = ""
    run_report: str = ""
    suite: str = ""
    metric_format: str = ""
    hang_analysis: str = ""
    ci_history: str = ""
    ci_row_history: str = ""


@cache
def features() -> tuple[Feature, ...]:
    """The features of all folders, by name. A folder without a declaration adds nothing."""
    package = importlib.import_module("ci_tasks.features")
    (folder,) = package.__path__
    names = sorted(name for name in os.listdir(folder) if os.path.isfile(f"{folder}/{name}/__init__.py"))
    modules = (importlib.import_module(f"{package.__name__}.{name}") for name in names)
    return tuple(module.FEATURE for module in modules if hasattr(module, "FEATURE"))


def load(reference: str) -> Any:
    """Import and return "module:attribute"."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


@cache
def hooks(field: str) -> tuple[Any, ...]:
    """The objects that this field of `Feature` refers to, of all features that set it."""
    return tuple(load(getattr(feature, field)) for feature in features() if getattr(feature, field))


def hook(field: str) -> Any:
    """The first of them; None without one."""
    return next(iter(hooks(field)), None)


def suites() -> tuple[Suite, ...]:
    return hooks("suite")


def suite_of(workflow: Workflow) -> Suite:
    """The first suite that matches the workflow, else the generic one."""
    from ci_tasks.workflow.suite import GENERIC

    return next((suite for suite in suites() if suite.matches(workflow)), GENERIC)


def metric_formats() -> tuple[MetricFormat, ...]:
    """In addition to the core's."""
    return hooks("metric_format")
