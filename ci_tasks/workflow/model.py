"""GitHub's nouns of a workflow file, as frozen records: what the reader gives, and a row of its matrix. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from ci_tasks.agent.codec import JSON_SCHEMA, encode
from ci_tasks.agent.quick_dataclass import dataclass


@dataclass(frozen=True)
class UnsupportedKey:
    """A key of a workflow that is refused, or has no effect here. `name` is its path below the job or the file."""

    name: str
    why: str
    line: int


@dataclass(frozen=True)
class Step:
    """One entry of a job's `steps`, unevaluated. `line` is 1-based in the workflow file."""

    name: str
    line: int
    id: str | None = None
    uses: str | None = None
    with_: Mapping[str, Any] = field(default_factory=dict)
    run: str | None = None
    shell: str | None = None
    env: Mapping[str, Any] = field(default_factory=dict)
    working_directory: str | None = None
    condition: str | None = None
    continue_on_error: Any = False
    timeout_minutes: Any = None
    refused: tuple[UnsupportedKey, ...] = ()
    action: LocalAction | None = None

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """The step, and the steps of the checkout's action that it uses."""
        return (self, *(each for step in (self.action.steps if self.action else ()) for each in step.all_steps))


@dataclass(frozen=True)
class LocalAction:
    """A composite action of the checkout. `file` is from its root; `inputs` are the defaults, `outputs` what its steps
    give, unevaluated."""

    file: str
    inputs: Mapping[str, Any]
    steps: tuple[Step, ...]
    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Container:
    """A job's `container:`, unevaluated. `options` are words for `docker create`."""

    image: str
    options: str = ""
    env: Mapping[str, Any] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True)
class Job:
    """One job of a workflow, unevaluated. `matrix` is a mapping, or an expression that gives one. `refused` keys make
    it an error to run the job, `unused` ones are a difference from CI. `calls`: it `uses` a workflow that was read,
    whose jobs follow it, each with its `call`."""

    id: str
    line: int
    name: str | None = None
    condition: str | None = None
    needs: tuple[str, ...] = ()
    runs_on: Any = None
    env: Mapping[str, Any] = field(default_factory=dict)
    matrix: Any = None
    fail_fast: Any = True
    max_parallel: Any = None
    continue_on_error: Any = False
    container: Container | None = None
    steps: tuple[Step, ...] = ()
    shell: str | None = None
    working_directory: str | None = None
    timeout_minutes: Any = None
    outputs: Mapping[str, Any] = field(default_factory=dict)
    uses: str | None = None
    with_: Mapping[str, Any] = field(default_factory=dict)
    secrets: Any = None
    calls: bool = False
    call: Call | None = None
    refused: tuple[UnsupportedKey, ...] = ()
    unused: tuple[UnsupportedKey, ...] = ()

    @property
    def own_id(self) -> str:
        """As its own file has it."""
        return self.id.rpartition(CALLED)[2]

    def needed_id(self, name: str) -> str:
        """The id of a job that it needs, which its own file calls `name`."""
        return f"{self.call.caller.id}{CALLED}{name}" if self.call else name

    @property
    def actions(self) -> set[str]:
        """What its steps use, without a version."""
        return {(step.uses or "").split("@")[0] for outer in self.steps for step in outer.all_steps}

    @property
    def is_labelled(self) -> bool:
        """Whether a person can ask for it: not if it only calls others, or makes and removes CI's machines."""
        return not (self.calls or self.actions & _OF_MACHINES)


CALLED = " / "  # between a job and one of the workflow that it calls, as GitHub shows them
# OWNER/REPO, a workflow in it, and the ref.
OF_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)/(\.github/workflows/[^/@]+)@(.+)")
_OF_MACHINES = {"volcengine/vemlp-github-runner", "machulav/ec2-github-runner"}


@dataclass(frozen=True)
class Call:
    """By whom a job of a reusable workflow is called; `workflow` is its own file."""

    caller: Job
    workflow: Workflow


@dataclass(frozen=True)
class WorkflowInput:
    """What a caller or a person may give to a workflow. `type` is GitHub's: string, boolean, number, choice, …"""

    type: str = "string"
    default: Any = None


# Events that start a workflow for a commit, without inputs.
PULL_REQUEST = ("pull_request", "pull_request_target")
_CODE_EVENTS = (*PULL_REQUEST, "push", "merge_group")


@dataclass(frozen=True)
class Workflow:
    """A workflow file. `path` is from the checkout's root, or as `OF_REPOSITORY` has it; `rendered` says that it came
    from a template. `events` start it; `filters` say which pull requests do (of a workflow
    that only pushes start: which pushes), by `paths`, `branches` and the like.
    `unused` keys are a difference from CI."""

    path: str
    name: str
    jobs: Mapping[str, Job]
    env: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    rendered: bool = False
    inputs: Mapping[str, WorkflowInput] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    unused: tuple[UnsupportedKey, ...] = ()

    @property
    def labelled(self) -> list[Job]:
        """The jobs that a person can ask for."""
        return [job for job in self.jobs.values() if job.is_labelled]

    def file_of(self, job: Job) -> Workflow:
        """The workflow whose file has the job."""
        return job.call.workflow if job.call else self

    @property
    def is_for_pull_requests(self) -> bool:
        return not self.events or any(event in self.events for event in PULL_REQUEST)

    @property
    def needs_inputs(self) -> bool:
        """Whether it starts only when it is called, or by hand."""
        return bool(self.inputs) and not any(event in self.events for event in _CODE_EVENTS)

    @property
    def place(self) -> str:
        """What line numbers count in: the file, or the text that its template gave."""
        return f"{self.path} (rendered)" if self.rendered else self.path


@dataclass(frozen=True)
class JobRow:
    """An entry of `jobs --json`. `trigger` is the PR label, null for a job that always runs; `gpus` null if the
    workflow does not say; `dynamic` the expression of a matrix that only another job's output can give; `refused` says
    why its runner has no equivalent here."""

    label: str
    job: str
    trigger: str | None
    row: str
    test: str | None
    args: str
    gpus: int | None
    image: str | None
    env: Mapping[str, str]
    runner: str
    timeout_minutes: float | None
    dynamic: str | None = field(default=None, metadata={JSON_SCHEMA: {"optional": True}})
    refused: str | None = field(default=None, metadata={JSON_SCHEMA: {"optional": True}})

    @classmethod
    def of(cls, row: Row) -> JobRow:
        return JobRow(**{field.name: getattr(row, field.name) for field in fields(JobRow)})

    def public(self) -> Mapping[str, object]:
        """For JSON: `dynamic` and `refused` are there only if they say something."""
        return encode(self, versioned=False, compact=True)


@dataclass(frozen=True)
class Row(JobRow):
    """One entry of a job's expanded matrix, evaluated: what CI shows as one check.

    `test` is a path from the checkout's root, or None if the job names no test file; `matrix` is the entry, `index` its
    position among the job's `total`. `callers` are the entries of the jobs that call it, outermost first. `gpus_given`:
    a person gave the count of its GPUs; `gpus_of_runner`: only the runner's label says it.
    """

    matrix: Mapping[str, Any] = field(default_factory=dict)
    callers: tuple[Mapping[str, Any], ...] = ()
    index: int = 0
    total: int = 1
    gpus_given: bool = False
    gpus_of_runner: bool = False

    @property
    def needed_gpus(self) -> int:
        """Of a row that is planned: none is without a count."""
        assert self.gpus is not None, f"row {self.row} has no GPU count"
        return self.gpus
