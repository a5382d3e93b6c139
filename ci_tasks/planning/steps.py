"""A job's steps for one row: evaluated text, and an equivalent for each `uses:`.

`run:` text stays as it is but for its expressions. `actions/checkout` is our code sync, `actions/setup-python` a venv;
actions that only move files between CI's machines are left out by name; any other is an error that says how to replace
it. So is a step that would run with what only GitHub knows, or only an earlier step's end can decide.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import OVERLAYS, Checkout, Deviation
from ci_tasks.config import PIP_DEFAULT, Override
from ci_tasks.errors import WorkflowError, did_you_mean, nearest
from ci_tasks.planning.pip_commands import pip_installs, uses_pip, with_index
from ci_tasks.workflow import expressions
from ci_tasks.workflow.context import Resolver, UnknownValueError
from ci_tasks.workflow.expressions import FAILURE, SUCCESS
from ci_tasks.workflow.model import Job, Step
from ci_tasks.workflow.runner import labels
from ci_tasks.workflow.suite import label_of, matches_job
from ci_tasks.workflow.values import OpenObject, Value

_SHELLS = {
    None: ("bash", "-e", "{0}"),
    "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail", "{0}"),
    "sh": ("sh", "-e", "{0}"),
    "python": ("python", "{0}"),
}
_CHECKOUT, _SETUP_PYTHON, _VERSION = "actions/checkout", "actions/setup-python", "python-version"
_WITHOUT_EFFECT = ("actions/cache", "actions/upload-artifact")
# What checkout does differently when asked to: input → (what, what is here, why); not for values that change nothing.
_OF_CHECKOUT = {
    "submodules": ("submodules", "as they are in your checkout", "no server is asked for them"),
    "lfs": ("LFS files", "pointers, as committed", "no server is asked for them"),
    "sparse-checkout": ("sparse-checkout", "the whole tree", "your working tree is what is tested"),
    "fetch-depth": ("history", "one commit", "only the tested commit is sent"),
    "fetch-tags": ("tags", "none", "only the tested commit is sent"),
}
# Inputs of GitHub's actions that say how something is fetched, kept or shown, and not what a later step sees.
_UNUSED_INPUTS = {
    _CHECKOUT: ("token", "ssh-key", "ssh-known-hosts", "ssh-strict", "ssh-user", "persist-credentials", "clean")
    + ("filter", "sparse-checkout-cone-mode", "show-progress", "set-safe-directory", "github-server-url"),
    _SETUP_PYTHON: ("cache", "cache-dependency-path", "check-latest", "token", "allow-prereleases"),
}
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_ARM = re.compile(r"(.*[-_.])?(arm|arm64|aarch64)([-_.].*)?", re.IGNORECASE)
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
    runner = OpenObject("runner", {**resolve.contexts["runner"], "arch": architecture(job, resolve)})
    planner = _StepsPlanner(job, overrides)
    planner.add(job.steps, resolve.with_contexts(runner=runner, steps={}))
    if not planner.planned:
        raise WorkflowError("has no step to run", file=resolve.file, job=job.id, line=job.line)
    return PlannedSteps(tuple(planner.planned), planner.python, tuple(planner.deviations), tuple(planner.sources))


def check_job(job: Job, file: str) -> None:
    """Raises WorkflowError for a job with what no row of it could have."""
    if job.uses:
        hint = f"list its jobs with --workflow {job.uses.removeprefix('./')}" if job.uses.startswith("./") else ""
        message, text = "reusable workflows are not supported", f"uses: {job.uses}"
        raise WorkflowError(message, file=file, job=job.id, line=job.line, text=text, hint=hint)
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
                results = {**resolve.contexts["steps"], original.id: _result(step, original.id)}
                resolve = resolve.with_contexts(steps=results)
            if step is not None:
                self._add(step, resolve)

    def _add(self, step: Step, resolve: Resolver) -> None:
        for key in step.refused:
            raise _refused(f"`{key.name}` is not supported: {key.why}", step, resolve)
        action = (step.uses or "").split("@")[0]
        if any(_is_action(action, name) for name in _WITHOUT_EFFECT):
            # Unevaluated: the key of a cache asks for hashFiles, which only CI's runner can answer.
            why = "only moves files around in CI"
            self.deviations.append(Deviation(f"step {step.name!r}", f"uses {step.uses}", "not run", why))
            return
        _check_exported(step, self.sources, resolve)
        self.sources.append(replace(step, with_=_used_inputs(step)))
        if not step.uses:
            self.planned.append(_run_step(step, self.job, resolve))
        elif any(resolve.condition(step.condition, status, step=step) for status in (SUCCESS, FAILURE)):
            # Whether a step of a local action runs after a failure, its own `if` says.
            if step.action:
                self.add(step.action.steps, resolve.of_action(step))
            else:
                self._add_equivalent(action, step, resolve)

    def _add_equivalent(self, action: str, step: Step, resolve: Resolver) -> None:
        if action not in _UNUSED_INPUTS:
            raise _unsupported(step, resolve, "uses an action that has no equivalent here")
        inputs = {key: resolve.text(value, step=step) for key, value in _used_inputs(step).items()}
        if action == _SETUP_PYTHON:
            if not inputs.get(_VERSION):
                raise _unsupported(step, resolve, "does not say which Python")
            self.python = inputs[_VERSION]
        elif elsewhere := _checked_out_elsewhere(inputs, resolve):
            raise _unsupported(step, resolve, f"checks out something else ({', '.join(elsewhere)})")
        self.deviations += _input_deviations(action, step, inputs)


# -- overrides ---------------------------------------------------------------------------------------------------------


def override_warnings(overrides: Sequence[Override], jobs: Mapping[str, Job]) -> list[str]:
    """What overrides say in vain. One for a job that this workflow does not have may be for another workflow, unless
    its name is nearly that of a job here."""
    warnings: list[str] = []
    for override in overrides:
        of_job = [job for job in jobs.values() if matches_job(override.job, job.id)]
        head = f"{override.source}: this override changes nothing: "
        names = [name for job in jobs for name in (job, label_of(job))]
        if not of_job and (name := nearest(override.job, names, _ALMOST)):
            warnings.append(f"{head}there is no job {override.job!r}; did you mean {name!r}?")
        for job in of_job:
            steps = {step.name: step for outer in job.steps for step in outer.all_steps}
            step = next((step for step in steps.values() if _is_meant(override, step)), None)
            if step is None:
                guess = did_you_mean(override.step, steps) or f"; its steps: {', '.join(steps)}"
                warnings.append(f"{head}job {job.id} has no step {override.step!r}{guess}")
            elif missing := next((old for old in override.replace if old not in (step.run or "")), None):
                warnings.append(f"{head}step {step.name!r} has no text {missing!r}")
            elif override.pip_index and not uses_pip(step.run or ""):
                warnings.append(f"{head}step {step.name!r} has no pip command")
    return warnings


def _is_meant(override: Override, step: Step) -> bool:
    """By its name, or by its action, whose version moves."""
    return override.step == step.name or bool(step.uses and override.step == step.uses.split("@")[0])


def _overridden(step: Step, job: Job, overrides: Sequence[Override]) -> tuple[Step | None, list[Deviation]]:
    meant = (each for each in overrides if _is_meant(each, step) and matches_job(each.job, job.id))
    override = next(meant, None)
    if override is None:
        return step, []
    ci = (step.run or step.uses or "").strip()
    if override.skip:
        changed, differences = None, [(ci, "skipped")]
    elif override.run is not None:
        changed = replace(step, run=override.run, uses=None, refused=(), action=None)
        differences = [(ci, override.run.strip())]
    elif override.with_ is None:
        changed, differences = _changed_in_parts(step, override)
    else:
        changed = replace(step, with_={**step.with_, **override.with_})
        before = ", ".join(f"{key}: {step.with_.get(key, 'unset')}" for key in override.with_)
        differences = [(before, ", ".join(f"{key}: {value}" for key, value in override.with_.items()))]
    what, why = f"step {step.name!r}", f"override in {override.source}"
    return changed, [Deviation(what, before, after, why) for before, after in differences]


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


# -- actions -----------------------------------------------------------------------------------------------------------


def version_matches(requested: str, version: str) -> bool:
    """Whether `version` (3.10.13) is what setup-python's `requested` (3.10, 3.x, 3.10.13) asks for."""
    parts = requested.split(".")
    return all(part in ("x", "*") or part == have for part, have in zip(parts, version.split("."), strict=False))


def architecture(job: Job, resolve: Resolver) -> str:
    """As `runner.arch` has it."""
    return "ARM64" if any(_ARM.fullmatch(label) for label in labels(job, resolve)) else "X64"


def _is_action(action: str, name: str) -> bool:
    """Whether `uses:` names the action, or a part of it, such as actions/cache/restore."""
    return action == name or action.startswith(name + "/")


def _used_inputs(step: Step) -> dict[str, object]:
    """The inputs of a step's action that make a difference, unevaluated."""
    unused = _UNUSED_INPUTS.get((step.uses or "").split("@")[0], ())
    return {key: value for key, value in step.with_.items() if key not in unused}


def _checked_out_elsewhere(inputs: Mapping[str, str], resolve: Resolver) -> list[str]:
    """The inputs of a checkout that ask for something else than the event's own commit."""
    github = resolve.contexts["github"]
    refs = ("", github.get("sha"), github.get("ref"))
    own = {"repository": ("", github.get("repository")), "ref": refs, "path": ("", ".", "./")}
    return [key for key, values in own.items() if inputs.get(key, "") not in values]


def _input_deviations(action: str, step: Step, inputs: Mapping[str, str]) -> Iterator[Deviation]:
    """What the action would have done otherwise."""
    for key, value in inputs.items():
        if action == _CHECKOUT and key in _OF_CHECKOUT:
            if value not in ("", "false", "1" if key == "fetch-depth" else ""):
                what, here, why = _OF_CHECKOUT[key]
                yield Deviation(what, f"{key}: {value}", here, why)
        elif key not in {_CHECKOUT: ("repository", "ref", "path"), _SETUP_PYTHON: (_VERSION,)}[action]:
            yield Deviation(f"step {step.name!r}", f"{key}: {value}", "not used", f"{action} is not run")


def _result(step: Step | None, id: str) -> Value:
    """What later steps see of this one. A cache that is not asked for has missed; else only the step's end can say."""
    name = f"steps.{id}"
    if step is None or not step.uses:
        return OpenObject(name)
    is_cache = _is_action(step.uses.split("@")[0], "actions/cache")
    outputs: Value = {"cache-hit": ""} if is_cache else OpenObject(f"{name}.outputs")
    return OpenObject(name, {"outputs": outputs, "outcome": "success", "conclusion": "success"})


# -- `run:` ------------------------------------------------------------------------------------------------------------


def _run_step(step: Step, job: Job, resolve: Resolver) -> PlannedStep:
    inner = resolve.with_env({**resolve.contexts["env"], **resolve.values(step.env, step=step)})
    on_success, on_failure = (inner.condition(step.condition, status, step=step) for status in (SUCCESS, FAILURE))
    try:
        planned = _evaluated(step, job, resolve, inner)
    except UnknownValueError:
        if on_success or on_failure:
            raise
        # Nothing runs with what is unknown in it. Bash is given the step so that it has its number and its name.
        name = inner.shown(step.name, step=step)
        planned = PlannedStep(name, "# its `if` never holds here\n", _SHELLS["bash"], "", id=step.id)
    return replace(planned, on_success=on_success, on_failure=on_failure)


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


def _words(shell: str | None, step: Step, resolve: Resolver) -> tuple[str, ...]:
    if shell in _SHELLS:
        return _SHELLS[shell]
    try:
        words = tuple(shlex.split(resolve.text(shell, step=step)))
    except ValueError as error:
        raise _refused(f"its shell cannot be read as words: {error}", step, resolve, shell or "") from None
    if "{0}" not in (shell or ""):
        valid = "valid: bash, sh, python, or a command with {0}"
        raise _refused(f"the shell {shell!r} is not supported here; {valid}", step, resolve)
    return words


def is_true(value: Any) -> bool:
    """What GitHub makes of a value where it wants a boolean."""
    return value == "true" if isinstance(value, str) else bool(value)


def _refused(message: str, step: Step, resolve: Resolver, text: str = "", hint: str = "") -> WorkflowError:
    place = {"file": resolve.file, "job": resolve.job, "step": step.name}
    return WorkflowError(message, **place, line=step.line, text=text, hint=hint)


def _unsupported(step: Step, resolve: Resolver, message: str) -> WorkflowError:
    override = f"overrides: [{{job: {resolve.job}, step: {step.name!r}, skip: true}}]"
    hint = f"replace or skip it in hosts.yaml: {override}"
    return _refused(message, step, resolve, f"uses: {step.uses}", hint)


# -- what a step reads -------------------------------------------------------------------------------------------------


def expression_texts(step: Step) -> list[str]:
    """Everything in a step that may hold an expression; its `if:` as one."""
    own = (step.run, step.name, step.working_directory, step.shell, step.continue_on_error, step.timeout_minutes)
    values = (*own, *step.env.values(), *step.with_.values())
    return [str(text) for text in values if text is not None] + condition_texts(step.condition)


def condition_texts(condition: str | None) -> list[str]:
    """An `if:` as text in which its expressions can be found: `${{ }}` is optional there."""
    return [condition if "${{" in condition else f"${{{{ {condition} }}}}"] if condition else []


def referenced_names(texts: Iterable[str]) -> list[str]:
    """What the expressions in `texts` read, as dotted names."""
    return list(dict.fromkeys(name for text in texts for name in expressions.references(text)))


def depends_on_matrix(names: Iterable[str]) -> bool:
    """Whether something that reads `names` may differ from row to row."""
    return any(name.split(".")[0] in ("matrix", "strategy") for name in names)


def _depends_on_matrix(step: Step, job: Job) -> bool:
    """Whether the step may differ from row to row, be it by way of the job's `env`."""
    names = referenced_names([*expression_texts(step), job.working_directory or ""])
    by_env = [str(value) for key, value in job.env.items() if f"env.{key}" in names or "env" in names]
    return depends_on_matrix([*names, *referenced_names(by_env)])


def _check_exported(step: Step, before: Sequence[Step], resolve: Resolver) -> None:
    """Nothing that this step says is decided by what a step that ran `before` wrote to GITHUB_ENV."""
    exporting = [earlier.run for earlier in before if earlier.run and "GITHUB_ENV" in earlier.run]
    for name in referenced_names(expression_texts(step)):
        context, _, key = name.partition(".")
        variable = re.compile(rf"\b{re.escape(key.split('.')[0])}\b")
        if context == "env" and key and any(variable.search(text) for text in exporting):
            message = "needs a variable that an earlier step writes to GITHUB_ENV, which is known only while it runs"
            hint = f"the script can take it from its environment: ${key}"
            raise _refused(message, step, resolve, name, hint)


# -- --build -----------------------------------------------------------------------------------------------------------

# Its processes are none of the test's: what they import shows nothing of it.
_NO_PROBE = "CI_TASKS_NO_PROBE"
# Options that the container of a build has like the job's: it must not be of an older image.
_LIKE = {
    "--pull=always": re.compile(r"--pull[= ]always|docker pull\b"),
    "--network host": re.compile(r"--net(work)?[= ]host"),
}


def build_steps(
    checkout: Checkout, workspace: str, image: str | None = None, secrets: Iterable[str] = (), like: str = ""
) -> tuple[PlannedStep, ...]:
    """With an `image` each runs in a container of it, which gets the tree and the variables of `secrets`, and the
    network and the image's state of the container that the step `like` starts."""
    steps = []
    for overlay in checkout.overlays:
        if overlay.build:
            directory = f"{workspace}/{OVERLAYS}/{overlay.name}"
            name, text, words = f"Build overlay {overlay.name}", f"{overlay.build}\n", ("bash", "-e", "{0}")
            step = PlannedStep(name, text, words, directory, {_NO_PROBE: "1"}, builds=overlay.name)
            steps.append(_in_container(step, image, secrets, like) if image else step)
    return tuple(steps)


def position(steps: Sequence[PlannedStep], installing: int, *, in_image: bool) -> int:
    """Before the first step that starts a container, which may need a login before. In a venv behind the steps whose
    packages runs share, as these must not hold a build; else behind those that call pip, but before the last one."""
    if in_image:
        return next((at for at, step in enumerate(steps) if "docker run" in step.text), 0)
    return installing or max((at for at, step in enumerate(steps[:-1], 1) if uses_pip(step.text)), default=0)


def _in_container(step: PlannedStep, image: str, secrets: Iterable[str], like: str) -> PlannedStep:
    place = f'"$GITHUB_WORKSPACE"/{OVERLAYS}/{step.builds}'
    variables = "".join(f" -e {name}" for name in (_NO_PROBE, *secrets))
    options = "".join(f" {option}" for option, pattern in _LIKE.items() if pattern.search(like))
    start = f"docker run --rm{options} -v {place}:{place} -w {place}{variables} --entrypoint bash"
    text = f"{start} {shlex.quote(image)} -ec {shlex.quote(step.text)}\n"
    return PlannedStep(step.name, text, step.words, "", step.env, builds=step.builds)
