"""A job's steps for one row: evaluated text, and an equivalent for each `uses:`.

`run:` text stays as it is but for its expressions. `actions/checkout` is our code sync, `actions/setup-python` a venv;
actions that only move files between CI's machines are left out by name; any other is an error that says how to replace
it. So is a step that would run with what only GitHub knows, or only an earlier step's end can decide.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import PIP_DEFAULT, Override
from ci_tasks.errors import WorkflowError, did_you_mean, nearest
from ci_tasks.planning.actions import (
    CHECKOUT,
    PYTHON_VERSION,
    SETUP_PYTHON,
    checked_out_elsewhere,
    checkout_deviations,
    setup_python_deviations,
    used_inputs,
)
from ci_tasks.planning.expression_references import depends_on_matrix, expression_texts, referenced_names
from ci_tasks.planning.pip_commands import pip_installs, uses_pip, with_index
from ci_tasks.planning.runners import architecture
from ci_tasks.records import Deviation
from ci_tasks.workflow.expressions import FAILURE, SUCCESS
from ci_tasks.workflow.model import Job, Step
from ci_tasks.workflow.naming import label_of, matches_job
from ci_tasks.workflow.resolve import Resolver, UnknownValueError
from ci_tasks.workflow.values import OpenObject, Value

_SHELLS = {
    None: ("bash", "-e", "{0}"),
    "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail", "{0}"),
    "sh": ("sh", "-e", "{0}"),
    "python": ("python", "{0}"),
}
_WITHOUT_EFFECT = ("actions/cache", "actions/upload-artifact")
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_ALMOST = 0.75  # how alike two names are of which one is misspelt


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
    builds: str = ""  # the overlay that it makes ready: if it fails, nothing is known of the row


@dataclass(frozen=True)
class PlannedSteps:
    """All steps of a row, and the unevaluated ones they come from. `python` is the version that setup-python names."""

    steps: tuple[PlannedStep, ...]
    python: str | None
    deviations: tuple[Deviation, ...]
    sources: tuple[Step, ...] = ()

    def split(self) -> tuple[tuple[PlannedStep, ...], tuple[PlannedStep, ...]]:
        """The leading steps that are the same for every row, done once, and the rest. The last step is never shared."""
        first = next((number for number, step in enumerate(self.steps) if step.own), len(self.steps) - 1)
        return self.steps[:first], self.steps[first:]


def plan_steps(job: Job, resolve: Resolver, overrides: Sequence[Override]) -> PlannedSteps:
    """Evaluate the job's steps for the row that `resolve` stands for. Raises WorkflowError, ConfigError."""
    check_job(job, resolve.file)
    runner = {**resolve.contexts["runner"], "arch": architecture(job, resolve)}
    resolve = resolve.with_contexts(runner=OpenObject("runner", runner))
    planner = _StepsPlanner(job, overrides)
    planner.add(job.steps, resolve.with_contexts(steps={}))
    if not planner.planned:
        raise WorkflowError("has no step to run", file=resolve.file, job=job.id, line=job.line)
    return PlannedSteps(tuple(planner.planned), planner.python, tuple(planner.deviations), tuple(planner.sources))


def check_job(job: Job, file: str) -> None:
    """Raises WorkflowError for a job with what no row of it could have."""
    if job.uses:
        raise WorkflowError(
            "reusable workflows are not supported",
            file=file,
            job=job.id,
            line=job.line,
            text=f"uses: {job.uses}",
            hint=f"list its jobs with --workflow {job.uses.removeprefix('./')}" if job.uses.startswith("./") else "",
        )
    for key in job.refused:
        raise WorkflowError(f"`{key.name}`: {key.why}", file=file, job=job.id, line=key.line)


class _StepsPlanner:
    """What a row runs, as far as its steps have been looked at."""

    def __init__(self, job: Job, overrides: Sequence[Override]) -> None:
        self.job, self.overrides = job, overrides
        self.planned: list[PlannedStep] = []
        self.deviations: list[Deviation] = []
        self.sources: list[Step] = []
        self.python: str | None = None

    def add(self, steps: Sequence[Step], resolve: Resolver) -> None:
        """The steps of the job, or of an action that one of them uses, in order."""
        for original in steps:
            step, named = _overridden(original, self.job, self.overrides)
            self.deviations += named
            if original.id:
                resolve = resolve.with_contexts(
                    steps={**resolve.contexts["steps"], original.id: _result(step, original.id)}
                )
            if step is not None:
                self._add(step, resolve)

    def _add(self, step: Step, resolve: Resolver) -> None:
        for key in step.refused:
            raise _refused(f"`{key.name}` is not supported: {key.why}", step, resolve)
        if _without_effect(step):
            self.deviations.append(_not_run(step))
            return
        _check_exported(step, self.sources, resolve)
        if step.action:
            self.sources.append(step)
            # Whether one of its steps runs after a failure, its own `if` says.
            if any(resolve.condition(step.condition, status, step=step) for status in (SUCCESS, FAILURE)):
                self.add(step.action.steps, resolve.of_action(step))
        elif step.uses:
            version, named = _equivalent(step, resolve)
            self.python = version or self.python
            self.deviations += named
            self.sources.append(replace(step, with_=used_inputs(step)))
        else:
            self.planned.append(_run_step(step, self.job, resolve))
            self.sources.append(step)


def override_warnings(overrides: Sequence[Override], jobs: Mapping[str, Job]) -> list[str]:
    """What overrides say in vain. One for a job that this workflow does not have may be for another workflow, unless
    its name is nearly that of a job here."""
    warnings: list[str] = []
    for override in overrides:
        of_job = [job for job in jobs.values() if matches_job(override.job, job.id)]
        head = f"{override.source}: this override changes nothing: "
        if not of_job and (name := nearest(override.job, [each for job in jobs for each in _names(job)], _ALMOST)):
            warnings.append(f"{head}there is no job {override.job!r}; did you mean {name!r}?")
        for job in of_job:
            steps = {step.name: step for outer in job.steps for step in outer.all_steps}
            step = next((step for step in steps.values() if _is_meant(override, step)), None)
            if step is None:
                guess = did_you_mean(override.step, steps) or f"; its steps: {', '.join(steps)}"
                warnings.append(f"{head}job {job.id} has no step {override.step!r}{guess}")
            elif reason := _without_change(override, step):
                warnings.append(f"{head}{reason}")
    return warnings


def _names(job: str) -> tuple[str, str]:
    return job, label_of(job)


def _without_change(override: Override, step: Step) -> str:
    """Which part of the override the step does not have."""
    script = step.run or ""
    if missing := next((old for old in override.replace if old not in script), None):
        return f"step {step.name!r} has no text {missing!r}"
    if override.pip_index and not uses_pip(script):
        return f"step {step.name!r} has no pip command"
    return ""


def version_matches(requested: str, version: str) -> bool:
    """Whether `version` (3.10.13) is what setup-python's `requested` (3.10, 3.x, 3.10.13) asks for."""
    parts = requested.split(".")
    return all(part in ("x", "*") or part == have for part, have in zip(parts, version.split("."), strict=False))


def _is_meant(override: Override, step: Step) -> bool:
    """By its name, or by its action, whose version moves."""
    return override.step == step.name or bool(step.uses and override.step == step.uses.split("@")[0])


def _overridden(step: Step, job: Job, overrides: Sequence[Override]) -> tuple[Step | None, list[Deviation]]:
    for override in overrides:
        if not _is_meant(override, step) or not matches_job(override.job, job.id):
            continue
        ci, what, why = (step.run or step.uses or "").strip(), f"step {step.name!r}", f"override in {override.source}"
        if override.skip:
            return None, [Deviation(what, ci, "skipped", why)]
        if override.run is not None:
            changed = replace(step, run=override.run, uses=None, refused=(), action=None)
            return changed, [Deviation(what, ci, override.run.strip(), why)]
        if override.with_ is None:
            changed, differences = _changed_in_parts(step, override)
            return changed, [Deviation(what, before, after, why) for before, after in differences]
        merged = {**step.with_, **(override.with_ or {})}
        here = ", ".join(f"{key}: {value}" for key, value in (override.with_ or {}).items())
        before = ", ".join(f"{key}: {step.with_.get(key, 'unset')}" for key in override.with_ or {})
        return replace(step, with_=merged), [
            Deviation(what, before, here, why),
        ]
    return step, []


def _changed_in_parts(step: Step, override: Override) -> tuple[Step, list[tuple[str, str]]]:
    """The step with other parts of its script, and each of them, before and after."""
    script, index = step.run or "", override.pip_index
    differences = [(old, new or "nothing") for old, new in override.replace.items() if old in script]
    for old, new in override.replace.items():
        script = script.replace(old, new)
    if index is None or not uses_pip(script):
        return replace(step, run=script if step.run else None), differences
    without_index = any(not install.indexes for install in pip_installs(script))
    script, indexes = with_index(script, index)
    differences += dict.fromkeys(indexes)
    if index == PIP_DEFAULT:
        return replace(step, run=script), differences
    env = {**step.env, "PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index}
    return replace(step, run=script, env=env), [*differences, *[("pip's own index", index)] * without_index]


def _result(step: Step | None, id: str) -> Value:
    """What later steps see of this one. A cache that is not asked for has missed; else only the step's end can say."""
    name = f"steps.{id}"
    if step is None or not step.uses:
        return OpenObject(name)
    action = step.uses.split("@")[0]
    outputs: Value = {"cache-hit": ""} if _is_action(action, "actions/cache") else OpenObject(f"{name}.outputs")
    return OpenObject(name, {"outputs": outputs, "outcome": "success", "conclusion": "success"})


def _without_effect(step: Step) -> bool:
    action = (step.uses or "").split("@")[0]
    return any(_is_action(action, name) for name in _WITHOUT_EFFECT)


def _is_action(action: str, name: str) -> bool:
    """Whether `uses:` names the action, or a part of it, such as actions/cache/restore."""
    return action == name or action.startswith(name + "/")


def _not_run(step: Step) -> Deviation:
    """Unevaluated: the key of a cache asks for hashFiles, which only CI's runner can answer."""
    return Deviation(f"step {step.name!r}", f"uses {step.uses}", "not run", "only moves files around in CI")


def _equivalent(step: Step, resolve: Resolver) -> tuple[str | None, list[Deviation]]:
    """What stands here for an action: (a Python version it sets up, deviations)."""
    if not any(resolve.condition(step.condition, status, step=step) for status in (SUCCESS, FAILURE)):
        return None, []
    action = (step.uses or "").split("@")[0]
    if action in (CHECKOUT, SETUP_PYTHON):
        inputs = {key: resolve.text(value, step=step) for key, value in used_inputs(step).items()}
    if action == CHECKOUT:
        if elsewhere := checked_out_elsewhere(inputs, resolve):
            raise _unsupported(step, resolve, f"checks out something else ({', '.join(elsewhere)})")
        return None, list(checkout_deviations(step, inputs))
    if action == SETUP_PYTHON:
        if not inputs.get(PYTHON_VERSION):
            raise _unsupported(step, resolve, "does not say which Python")
        return inputs[PYTHON_VERSION], list(setup_python_deviations(step, inputs))
    raise _unsupported(step, resolve, "uses an action that has no equivalent here")


def _unsupported(step: Step, resolve: Resolver, message: str) -> WorkflowError:
    override = f"overrides: [{{job: {resolve.job}, step: {step.name!r}, skip: true}}]"
    hint = f"replace or skip it in hosts.yaml: {override}"
    return _refused(message, step, resolve, f"uses: {step.uses}", hint)


def _run_step(step: Step, job: Job, resolve: Resolver) -> PlannedStep:
    inner = resolve.with_env({**resolve.contexts["env"], **resolve.values(step.env, step=step)})
    runs = [inner.condition(step.condition, status, step=step) for status in (SUCCESS, FAILURE)]
    try:
        planned = _evaluated(step, job, resolve, inner)
    except UnknownValueError:
        if any(runs):
            raise
        # Nothing runs with what is unknown in it. Bash is given the step so that it has its number and its name.
        name = inner.shown(step.name, step=step)
        planned = PlannedStep(name, "# its `if` never holds here\n", _SHELLS["bash"], "", id=step.id)
    return replace(planned, on_success=runs[0], on_failure=runs[1])


def _evaluated(step: Step, job: Job, resolve: Resolver, inner: Resolver) -> PlannedStep:
    """Every part of the step as it runs; `inner` sees the step's own variables. Raises UnknownValueError."""
    step_env = resolve.strings(step.env, step=step)
    directory = step.working_directory or job.working_directory
    minutes = inner.number(step.timeout_minutes, "timeout-minutes")
    planned = PlannedStep(
        name=inner.shown(step.name, step=step),
        text=inner.text(step.run or "", step=step),
        words=_words(step.shell or job.shell, step, inner),
        directory=inner.text(directory, step=step) if directory else str(inner.contexts["github"]["workspace"]),
        env=step_env,
        id=step.id,
        continue_on_error=is_true(inner.known(step.continue_on_error, step=step)),
        timeout_minutes=minutes if minutes and minutes > 0 else None,  # GitHub takes 0 for no limit
        own=_depends_on_matrix(step, job),
    )
    if any("\0" in text for text in (planned.text, planned.name, planned.directory, *step_env, *step_env.values())):
        raise _refused("has a NUL byte, which no script and no variable can hold", step, resolve)
    if step.id and not _ID.fullmatch(step.id):
        raise _refused(f"the id {step.id!r} is no identifier", step, resolve)
    return planned


def _refused(message: str, step: Step, resolve: Resolver, text: str = "", hint: str = "") -> WorkflowError:
    return WorkflowError(
        message, file=resolve.file, job=resolve.job, step=step.name, line=step.line, text=text, hint=hint
    )


def is_true(value: Any) -> bool:
    """What GitHub makes of a value where it wants a boolean."""
    return value == "true" if isinstance(value, str) else bool(value)


def _check_exported(step: Step, before: Sequence[Step], resolve: Resolver) -> None:
    """Nothing that this step says is decided by what a step that ran `before` wrote to GITHUB_ENV."""
    exporting = [earlier.run for earlier in before if earlier.run and "GITHUB_ENV" in earlier.run]
    for name in referenced_names(expression_texts(step)):
        parts = name.split(".")
        if (
            parts[0] == "env"
            and len(parts) > 1
            and any(re.search(rf"\b{re.escape(parts[1])}\b", text) for text in exporting)
        ):
            raise _refused(
                "needs a variable that an earlier step writes to GITHUB_ENV, which is known only while it runs",
                step,
                resolve,
                name,
                f"the script can take it from its environment: ${parts[1]}",
            )


def _words(shell: str | None, step: Step, resolve: Resolver) -> tuple[str, ...]:
    if shell in _SHELLS:
        return _SHELLS[shell]
    if shell and "{0}" in shell:
        try:
            return tuple(shlex.split(resolve.text(shell, step=step)))
        except ValueError as error:
            raise _refused(f"its shell cannot be read as words: {error}", step, resolve, shell) from None
    raise _refused(
        f"the shell {shell!r} is not supported here; valid: bash, sh, python, or a command with {{0}}", step, resolve
    )


def _depends_on_matrix(step: Step, job: Job) -> bool:
    """Whether the step may differ from row to row, be it by way of the job's `env`."""
    texts = [*expression_texts(step), *([job.working_directory] if job.working_directory else [])]
    names = referenced_names(texts)
    by_env = [str(value) for key, value in job.env.items() if f"env.{key}" in names or "env" in names]
    return depends_on_matrix([*names, *referenced_names(by_env)])
