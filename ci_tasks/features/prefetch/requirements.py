"""What the rows of a label will ask the hub for, each once for a host."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from ci_tasks.agent.containers.docker_argv import DockerRun
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config, HostSpec
from ci_tasks.features.prefetch.report import Unresolved
from ci_tasks.features.prefetch.repositories import (
    DATASET,
    HubRepository,
    UnresolvedArgument,
    downloaded_by_command,
    downloaded_by_library,
)
from ci_tasks.features.recorder.record import LaunchRecorder
from ci_tasks.features.recorder.records import UNKNOWN, LaunchCall, Recording, Value, commands_in, shell_split
from ci_tasks.features.suites.slime_helpers import DATASETS, commands_of
from ci_tasks.planning.containers import HostPath, container_of, environment_of, place
from ci_tasks.planning.steps import plan_steps
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.find_rows import JobRows
from ci_tasks.workflow import rows as workflow_rows
from ci_tasks.workflow import secrets
from ci_tasks.workflow.model import Row

_HIDDEN = re.compile(r"\b(?:hf|huggingface-cli)\s+download\b|snapshot_download|hf_hub_download")
_SHELL = re.compile(r"(?:\S*/)?(?:ba)?sh")


@dataclass(frozen=True)
class LabelRequirements:
    """What all rows ask for with its place on the host, and what stays open: each with the rows, and the places in
    their tests. `runs` has the container and the environment of each row."""

    repositories: dict[tuple[HubRepository, HostPath], list[tuple[str, str]]]
    unresolved: dict[Unresolved, list[str]]
    runs: dict[str, tuple[DockerRun | None, Mapping[str, str]]]


def label_requirements(
    source: CheckoutSource,
    config: Config,
    job_rows: JobRows,
    rows: Sequence[Row],
    spec: HostSpec,
    recorder: LaunchRecorder,
) -> LabelRequirements:
    """What `rows` will ask for on a host. `recorder` has the tree that will run."""
    found = LabelRequirements({}, {}, {})
    for row in rows:
        if not row.test:
            continue
        resolve = workflow_rows.row_resolver(source.workflow, job_rows.job, row, job_rows.context)
        run = container_of(job_rows.job, resolve, plan_steps(job_rows.job, resolve, config.overrides))
        env = environment_of(run, spec, {name: secrets.shown(value) for name, value in row.env.items()})
        found.runs[row.row] = run, env
        recording = recorder.record(row.test, shell_split(row.args), env)
        for where, asked in requirements_of(recording, env, row.test):
            if isinstance(asked, Unresolved):
                found.unresolved.setdefault(asked, []).append(row.row)
            else:
                key = asked, place(asked.directory, run, spec, env)
                found.repositories.setdefault(key, []).append((row.row, where))
    return found


def requirements_of(
    recording: Recording, env: Mapping[str, str], test: str
) -> Iterator[tuple[str, HubRepository | Unresolved]]:
    """What one test asks for, in its order, each with its place in the test. What it does after it stopped is
    unresolved."""
    for why in recording.stops:
        yield test, Unresolved(test, test, f"not seen from there on: {why}")
    for call in recording.calls:
        where = call.place or test
        for text, download in _downloads(call, {**env, **call.env}):
            try:
                if repository := download():
                    yield where, repository
            except UnresolvedArgument as problem:
                yield where, Unresolved(where, text, str(problem))


def _downloads(call: LaunchCall, env: Mapping[str, str]) -> Iterator[tuple[str, Callable[[], HubRepository | None]]]:
    """What a call downloads: its text, and what reads it."""
    if call.function == "hf_download_dataset":
        yield call.function, lambda: _dataset(call.kwargs.get("full_name"))
    yield call.function, lambda: downloaded_by_library(call, env)
    for outer in commands_of(call):
        for argv in _inner_commands(outer):
            yield " ".join(argv), lambda argv=argv: _by_command(argv, env)  # type: ignore[misc]


def _dataset(name: Value) -> HubRepository:
    if not isinstance(name, str) or UNKNOWN.search(name):
        raise UnresolvedArgument(f"{name} is not known")
    return HubRepository(DATASET, name, f"{DATASETS}/{name.rpartition('/')[2]}")


def _by_command(argv: Sequence[str], env: Mapping[str, str]) -> HubRepository | None:
    if repository := downloaded_by_command(argv, env):
        return repository
    if _HIDDEN.search(" ".join(argv)):
        raise UnresolvedArgument("it is started by another program, whose words are not read")
    if argv and argv[0].startswith("⟨"):
        raise UnresolvedArgument(f"it is not known which program this is: {argv[0]}")
    return None


def _inner_commands(argv: Sequence[str]) -> list[list[str]]:
    """The commands of a `bash -c TEXT`; of another program its own words."""
    if len(argv) > 2 and _SHELL.fullmatch(argv[0]) and re.fullmatch("-[a-z]*c", argv[1]):
        return commands_in(argv[2])
    return [list(argv)]
