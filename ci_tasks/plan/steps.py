"""A job's steps for one row: evaluated text, and an equivalent for each `uses:`.

`run:` text stays as it is but for its expressions. `actions/checkout` is our code sync, `actions/setup-python` a venv;
actions that only move files between CI's machines are left out by name; any other is an error that says how to replace it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ci_tasks.errors import ConfigError, WorkflowError
from ci_tasks.model import Deviation, Job, Override, Step
from ci_tasks.workflow import expressions
from ci_tasks.workflow.expressions import JobStatus
from ci_tasks.workflow.resolve import Resolver

_SHELLS = {
    None: ("bash", "-e", "{0}"),
    "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail", "{0}"),
    "sh": ("sh", "-e", "{0}"),
    "python": ("python", "{0}"),
}
_WITHOUT_EFFECT = ("actions/cache", "actions/upload-artifact")
_FAILED = JobStatus(success=False, failure=True)


@dataclass(frozen=True)
class PlannedStep:
    """A step as bash will run it. `words` start the interpreter; `{0}` among them is the script's file."""

    name: str
    text: str
    words: tuple[str, ...]
    directory: str
    env: Mapping[str, str] = field(default_factory=dict)
    id: str | None = None
    on_success: bool = True
    on_failure: bool = False
    continue_on_error: bool = False
    timeout_minutes: float | None = None
    own: bool = False  # belongs to this row alone, because it depends on the matrix


@dataclass(frozen=True)
class PlannedSteps:
    """All steps of a row. `python` is the version that setup-python names."""

    steps: tuple[PlannedStep, ...]
    python: str | None
    deviations: tuple[Deviation, ...]

    def split(self) -> tuple[tuple[PlannedStep, ...], tuple[PlannedStep, ...]]:
        """The leading steps that are the same for every row, done once, and the rest. The last step is never shared."""
        first = next((number for number, step in enumerate(self.steps) if step.own), len(self.steps) - 1)
        return self.steps[:first], self.steps[first:]


def plan_steps(job: Job, resolve: Resolver, overrides: Sequence[Override]) -> PlannedSteps:
    """Evaluate the job's steps for the row that `resolve` stands for. Raises WorkflowError, ConfigError."""
    if job.uses:
        raise WorkflowError(
            "calls another workflow, which cannot be planned",
            file=resolve.file,
            job=job.id,
            line=job.line,
            text=f"uses: {job.uses}",
            hint=f"list its jobs with --workflow {job.uses.removeprefix('./')}" if job.uses.startswith("./") else "",
        )
    if job.services:
        raise WorkflowError("has `services`, which are not supported", file=resolve.file, job=job.id, line=job.line)
    planned: list[PlannedStep] = []
    deviations: list[Deviation] = []
    python: str | None = None
    for original in job.steps:
        step, named = _overridden(original, job, overrides)
        deviations += named
        if step is None:
            continue
        if step.uses:
            version, named = _equivalent(step, job, resolve)
            python = version or python
            deviations += named
        else:
            planned.append(_run_step(step, job, resolve))
    if not planned:
        raise WorkflowError("has no step to run", file=resolve.file, job=job.id, line=job.line)
    return PlannedSteps(tuple(planned), python, tuple(deviations))


def check_overrides(overrides: Sequence[Override], jobs: Mapping[str, Job]) -> None:
    """Every override of a job that this workflow has meets one of its steps. Raises ConfigError."""
    for override in overrides:
        for job in jobs.values():
            if override.job in (job.id, job.id.removeprefix("e2e-test-")):
                steps = [step.name for step in job.steps]
                if override.step not in steps:
                    raise ConfigError(
                        f"the override of job {override.job} meets no step {override.step!r}",
                        hint=f"its steps: {', '.join(steps)}",
                    )


def version_matches(wanted: str, version: str) -> bool:
    """Whether `version` (3.10.13) is what setup-python's `wanted` (3.10, 3.x, 3.10.13) asks for."""
    parts = wanted.split(".")
    return all(part in ("x", "*") or part == have for part, have in zip(parts, version.split("."), strict=False))


def _overridden(step: Step, job: Job, overrides: Sequence[Override]) -> tuple[Step | None, list[Deviation]]:
    for override in overrides:
        if override.step != step.name or override.job not in (job.id, job.id.removeprefix("e2e-test-")):
            continue
        ci = (step.run or step.uses or "").strip()
        if override.skip:
            return None, [Deviation(f"step {step.name!r}", ci, "skipped", "override in hosts.yaml")]
        if override.run is not None:
            changed = replace(step, run=override.run, uses=None)
            return changed, [Deviation(f"step {step.name!r}", ci, override.run.strip(), "override in hosts.yaml")]
        merged = {**step.with_, **(override.with_ or {})}
        here = ", ".join(f"{key}: {value}" for key, value in (override.with_ or {}).items())
        before = ", ".join(f"{key}: {step.with_.get(key)}" for key in override.with_ or {})
        return replace(step, with_=merged), [
            Deviation(f"step {step.name!r}", before, here, "override in hosts.yaml"),
        ]
    return step, []


def _equivalent(step: Step, job: Job, resolve: Resolver) -> tuple[str | None, list[Deviation]]:
    """What stands here for an action: (a Python version it sets up, deviations)."""
    action = (step.uses or "").split("@")[0]
    given = {key: resolve.text(value, step=step) for key, value in step.with_.items()}
    if action == "actions/checkout":
        strange = [key for key in ("repository", "path", "ref") if given.get(key)]
        if strange:
            raise _unsupported(step, job, resolve, f"checks out something else ({', '.join(strange)})")
        return None, []
    if action == "actions/setup-python":
        version = given.get("python-version", "")
        if not version:
            raise _unsupported(step, job, resolve, "does not say which Python")
        return version, []
    if action.startswith(_WITHOUT_EFFECT):
        return None, [Deviation(f"step {step.name!r}", f"uses {step.uses}", "not run", "only moves files around in CI")]
    raise _unsupported(step, job, resolve, "uses an action that has no equivalent here")


def _unsupported(step: Step, job: Job, resolve: Resolver, message: str) -> WorkflowError:
    return WorkflowError(
        message,
        file=resolve.file,
        job=job.id,
        step=step.name,
        line=step.line,
        text=f"uses: {step.uses}",
        hint=f"replace or skip it in hosts.yaml: overrides: [{{job: {job.id}, step: {step.name!r}, skip: true}}]",
    )


def _run_step(step: Step, job: Job, resolve: Resolver) -> PlannedStep:
    step_env = resolve.strings(step.env, step=step)
    inner = resolve.with_env({**resolve.contexts["env"], **step_env})
    directory = step.working_directory or job.working_directory
    minutes = inner.number(step.timeout_minutes, "timeout-minutes")
    return PlannedStep(
        name=inner.text(step.name, step=step),
        text=_script(step, inner),
        words=_words(step.shell or job.shell, step, job, resolve),
        directory=inner.text(directory, step=step) if directory else str(inner.contexts["github"]["workspace"]),
        env=step_env,
        id=step.id,
        on_success=inner.condition(step.condition, step=step),
        on_failure=inner.condition(step.condition, _FAILED, step=step),
        continue_on_error=bool(inner.value(step.continue_on_error, step=step)),
        timeout_minutes=minutes,
        own=_depends_on_matrix(step),
    )


def _script(step: Step, resolve: Resolver) -> str:
    text = step.run or ""
    waiting = [name for name in expressions.references(text) if name.startswith("steps.")]
    if waiting:
        raise WorkflowError(
            "needs the output of an earlier step, which is known only while it runs",
            file=resolve.file,
            job=resolve.job,
            step=step.name,
            line=step.line,
            text=waiting[0],
        )
    return resolve.text(text, step=step)


def _words(shell: str | None, step: Step, job: Job, resolve: Resolver) -> tuple[str, ...]:
    if shell in _SHELLS:
        return _SHELLS[shell]
    if shell and "{0}" in shell:
        return tuple(shlex.split(shell))
    raise WorkflowError(
        f"the shell {shell!r} is not supported here; valid: bash, sh, python, or a command with {{0}}",
        file=resolve.file,
        job=job.id,
        step=step.name,
        line=step.line,
    )


def _depends_on_matrix(step: Step) -> bool:
    texts: list[Any] = [step.run, step.name, step.working_directory, *step.env.values()]
    condition = f"${{{{ {step.condition} }}}}" if step.condition and "${{" not in step.condition else step.condition
    found = [name for text in (*texts, condition) if text for name in expressions.references(str(text))]
    return any(name.split(".")[0] in ("matrix", "strategy") for name in found)
