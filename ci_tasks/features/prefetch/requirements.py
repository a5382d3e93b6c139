"""What the rows of a label will ask the hub for, and which paths they take to be there, each once for a host."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from ci_tasks.agent.containers.docker_argv import DockerRun
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config, HostSpec
from ci_tasks.features.prefetch.repositories import (
    DATASET,
    HubRepository,
    UnresolvedArgument,
    of_command,
    of_library,
)
from ci_tasks.features.recorder.record import LaunchRecorder
from ci_tasks.features.recorder.records import ROOT, UNKNOWN, LaunchCall, Recording, Value, commands_in, shell_split
from ci_tasks.features.suites.slime_helpers import CONVERTED, DATASETS, HELPERS, MODELS, commands_of
from ci_tasks.planning.containers import HostPath, container_of, environment_of, place
from ci_tasks.planning.steps import plan_steps
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.find_rows import JobRows
from ci_tasks.workflow import rows as workflow_rows
from ci_tasks.workflow import secrets
from ci_tasks.workflow.model import Row

# Flags of a training whose value is a path, or an id that transformers would download.
_PATHS = ("--hf-checkpoint", "--prompt-data", "--eval-prompt-data")
_HIDDEN = re.compile(r"\b(?:hf|huggingface-cli)\s+download\b|snapshot_download|hf_hub_download")
_SHELL = re.compile(r"-[a-z]*c")
_SLICE = re.compile(r"@?\[[^]]*]$")  # `data.jsonl@[0:100]` reads a part of the file


class Unresolved(NamedTuple):
    """A download that a test does not settle: its place in the test, its words, and why."""

    where: str
    text: str
    why: str


@dataclass(frozen=True)
class Requirements:
    """All of a test's, in its order, each with the first place that says so. `expected` are paths that it takes to be
    there, and that nothing in it makes or downloads."""

    repositories: dict[HubRepository, str] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    unresolved: dict[Unresolved, None] = field(default_factory=dict)


class Asked(NamedTuple):
    """The rows that ask for something, and the places in their tests that do."""

    rows: dict[str, None]
    where: dict[str, None]


@dataclass(frozen=True)
class LabelRequirements:
    """What all rows ask for, with its place on the host; and what stays open, by row. `runs` has the container and the
    environment of each row."""

    repositories: dict[tuple[HubRepository, HostPath], Asked]
    paths: dict[tuple[str, HostPath], Asked]
    unresolved: dict[Unresolved, dict[str, None]]
    runs: Mapping[str, tuple[DockerRun | None, Mapping[str, str]]]


def label_requirements(
    source: CheckoutSource,
    config: Config,
    job_rows: JobRows,
    rows: Sequence[Row],
    spec: HostSpec,
    recorder: LaunchRecorder,
) -> LabelRequirements:
    """What `rows` will ask for on a host. `recorder` has the tree that will run."""
    runs: dict[str, tuple[DockerRun | None, Mapping[str, str]]] = {}
    found = LabelRequirements({}, {}, {}, runs)
    for row in rows:
        if not row.test:
            continue
        resolve = workflow_rows.row_resolver(source.workflow, job_rows.job, row, job_rows.context)
        run = container_of(job_rows.job, resolve, plan_steps(job_rows.job, resolve, config.overrides))
        env = environment_of(run, spec, {name: secrets.shown(value) for name, value in row.env.items()})
        runs[row.row] = run, env
        own = requirements_of(recorder.record(row.test, shell_split(row.args), env), env, row.test)
        for repository, where in own.repositories.items():
            key = repository, place(repository.directory, run, spec, env)
            _note(found.repositories.setdefault(key, Asked({}, {})), row, where)
        for path, where in own.expected.items():
            _note(found.paths.setdefault((path, place(path, run, spec, env)), Asked({}, {})), row, where)
        for unresolved in own.unresolved:
            found.unresolved.setdefault(unresolved, {})[row.row] = None
    return found


def _note(asked: Asked, row: Row, where: str) -> None:
    asked.rows[row.row] = asked.where[where] = None


def requirements_of(recording: Recording, env: Mapping[str, str], test: str) -> Requirements:
    """What one test asks for. What it does after it stopped is unresolved."""
    found, made = Requirements(), ["/tmp", ROOT]
    launching = {call.entry for call in recording.calls if call.function in HELPERS or commands_of(call)}
    for stop in recording.stops:
        if stop.entry in launching or not stop.entry:
            found.unresolved[Unresolved(f"{test}:1", test, f"not seen from there on: {stop.why}")] = None
    for call in recording.calls:
        where = f"{call.stack[-1].file}:{call.stack[-1].line}" if call.stack else f"{test}:1"
        for text, download in _downloads(call, {**env, **call.env}):
            try:
                if repository := download():
                    found.repositories.setdefault(repository, where)
            except UnresolvedArgument as problem:
                found.unresolved[Unresolved(where, text, str(problem))] = None
        needed, makes = _paths(call)
        for path in _absolute(needed):
            found.expected.setdefault(posixpath.normpath(_SLICE.sub("", path)), where)
        made += map(posixpath.normpath, _absolute(makes))
    made += [posixpath.normpath(repository.directory) for repository in found.repositories]
    for path in [path for path in found.expected if any(f"{path}/".startswith(f"{top}/") for top in made)]:
        del found.expected[path]
    return found


def _absolute(paths: Sequence[Value]) -> list[str]:
    return [path for path in paths if isinstance(path, str) and path.startswith("/") and not UNKNOWN.search(path)]


def _downloads(call: LaunchCall, env: Mapping[str, str]) -> Iterator[tuple[str, Callable[[], HubRepository | None]]]:
    """What a call downloads: its text, and what reads it."""
    if call.function == "hf_download_dataset":
        yield call.function, lambda: _dataset(call.kwargs.get("full_name"))
    yield call.function, lambda: of_library(call, env)
    for outer in commands_of(call):
        for argv in _inner_commands(outer):
            yield " ".join(argv), lambda argv=argv: _by_command(argv, env)  # type: ignore[misc]


def _dataset(name: Value) -> HubRepository:
    if not isinstance(name, str) or UNKNOWN.search(name):
        raise UnresolvedArgument(f"{name} is not known")
    return HubRepository(DATASET, name, f"{DATASETS}/{name.rpartition('/')[2]}")


def _by_command(argv: Sequence[str], env: Mapping[str, str]) -> HubRepository | None:
    if repository := of_command(argv, env):
        return repository
    if _HIDDEN.search(" ".join(argv)):
        raise UnresolvedArgument("it is started by another program, whose words are not read")
    if argv and argv[0].startswith("⟨"):
        raise UnresolvedArgument(f"it is not known which program this is: {argv[0]}")
    return None


def _inner_commands(argv: Sequence[str]) -> list[list[str]]:
    """The commands of a `bash -c TEXT`; of another program its own words."""
    if argv and argv[0].rpartition("/")[2] in ("bash", "sh"):
        for at, word in enumerate(argv[1:-1], start=1):
            if _SHELL.fullmatch(word):
                return commands_in(argv[at + 1])
    return [list(argv)]


def _paths(call: LaunchCall) -> tuple[list[Value], list[Value]]:
    """What one of slime's helpers needs to be there, and what it makes."""
    given = call.kwargs
    if call.function == "convert_checkpoint":
        name = given.get("model_name")
        needed = given.get("hf_checkpoint") or f"{MODELS}/{name}"
        return [needed], [f"{given.get('dir_dst') or CONVERTED}/{name}_torch_dist"]
    if call.function in ("rsync_simple", "fp8_cast_bf16"):
        return [given.get("path_src")], [given.get("path_dst")]
    return list(_training_inputs(given.get("train_args"))) if call.function == "execute_train" else [], []


def _training_inputs(train_args: Value) -> Iterator[str]:
    flag = ""
    for text in shell_split(train_args) if isinstance(train_args, str) else ():
        if text.startswith("--"):
            flag, _, text = text.partition("=")
        if flag in _PATHS and text:
            yield text
