"""A job's steps for one row: evaluated text, and an equivalent for each `uses:`.

`run:` text stays as it is but for its expressions. What stands for an action is in `actions`, what a step needs of
earlier ones in `late`. A step that would run with what only GitHub knows is an error.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Deviation
from ci_tasks.config import PIP_DEFAULT, HostSpec, Override
from ci_tasks.errors import WorkflowError, did_you_mean, nearest
from ci_tasks.planning import actions
from ci_tasks.planning.pip_commands import pip_installs, uses_pip, with_index
from ci_tasks.planning.script import NotLateError, PlannedStep, late_test, late_text, part
from ci_tasks.workflow import expressions
from ci_tasks.workflow.context import Resolver, UnknownValueError, is_unset
from ci_tasks.workflow.expressions import FAILURE, SUCCESS
from ci_tasks.workflow.model import OF_REPOSITORY, Job, Row, Step
from ci_tasks.workflow.suite import label_of, matches_job
from ci_tasks.workflow.values import OpenObject, Unknown, Value, unknowns

_SHELLS = {
    None: ("bash", "-e", "{0}"),
    "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail", "{0}"),
    "sh": ("sh", "-e", "{0}"),
    "python": ("python", "{0}"),
}
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_ALMOST = 0.9  # how alike two names are if one is misspelt


@dataclass(frozen=True)
class PlannedSteps:
    """All steps of a row, and the unevaluated ones they come from. `python` is the version that setup-python names."""

    steps: tuple[PlannedStep, ...]
    python: str | None
    deviations: tuple[Deviation, ...]
    sources: tuple[Step, ...] = ()

    @property
    def last(self) -> int:
        """The number of the last script, from 0: uploads may follow it."""
        return max((number for number, step in enumerate(self.steps) if step.is_script), default=0)

    def layers_venv(self, row: Row, host: HostSpec) -> bool:
        """Whether what the job installs goes into a venv over the python3 on PATH: it would stay in that one's."""
        needs_it = host.runtime == "none" if row.image else any(uses_pip(step.text) for step in self.steps)
        return needs_it and not self.python and not host.simulate

    def split(self) -> tuple[tuple[PlannedStep, ...], tuple[PlannedStep, ...]]:
        """The leading steps that are the same for every row, done once, and the rest. The last script is not shared."""
        first = next((number for number, step in enumerate(self.steps[: self.last]) if step.own), self.last)
        return self.steps[:first], self.steps[first:]


def plan_steps(job: Job, resolve: Resolver, overrides: Sequence[Override], uploads: Iterable[str] = ()) -> PlannedSteps:
    """Evaluate the job's steps for the row that `resolve` stands for. `uploads` are the artifacts of other jobs that
    there are. Raises WorkflowError, ConfigError."""
    check_job(job, resolve.file)
    runner = OpenObject("runner", {**resolve.contexts["runner"], "arch": actions.architecture(job, resolve)})
    planner = _StepsPlanner(job, overrides, uploads)
    planner.add(job.steps, resolve.with_contexts(runner=runner, steps={}))
    if not planner.planned:
        raise WorkflowError("has no step to run", file=resolve.file, job=job.id, line=job.line)
    return PlannedSteps(tuple(planner.planned), planner.python, tuple(planner.deviations), tuple(planner.sources))


def check_job(job: Job, file: str) -> None:
    """Raises WorkflowError for a job with what no row of it could have."""
    if job.uses:
        of, text = OF_REPOSITORY.fullmatch(job.uses), f"uses: {job.uses}"
        where = "not in the checkout" if job.uses.startswith("./") else "in another repository"
        hint = f"--workflow-dir {of[1]}=DIR reads it from a checkout of that repository" if of else ""
        message = f"calls a workflow that is {where}"
        raise WorkflowError(message, file=file, job=job.id, line=job.line, text=text, hint=hint)
    for key in job.refused:
        raise WorkflowError(f"`{key.name}`: {key.why}", file=file, job=job.id, line=key.line)


class _StepsPlanner:
    """What a row runs, as far as its steps have been looked at."""

    def __init__(self, job: Job, overrides: Sequence[Override], uploaded: Iterable[str]) -> None:
        self.job, self.overrides, self.uploaded = job, overrides, uploaded
        self.planned: list[PlannedStep] = []
        self.deviations: list[Deviation] = []
        self.sources: list[Step] = []
        self.python: str | None = None

    def add(self, steps: Sequence[Step], resolve: Resolver, scope: str = "") -> Resolver:
        """The steps of the job, or of an action that one of them uses, in order. `scope` keeps the ids of an action's
        steps apart from the job's. Returns the resolver that knows all of them."""
        for original in steps:
            step, named = _overridden(original, self.job, self.overrides)
            self.deviations += named
            if original.id:
                result = actions.result(step, f"{scope}{original.id}")
                resolve = resolve.with_contexts(steps={**resolve.contexts["steps"], original.id: result})
            outputs = self._add(step, resolve, scope) if step is not None else None
            if original.id and outputs is not None:
                known = {**resolve.contexts["steps"], original.id: {**result, "outputs": outputs}}
                resolve = resolve.with_contexts(steps=known)
        return resolve

    def _add(self, step: Step, resolve: Resolver, scope: str) -> dict[str, Value] | None:
        """The outputs of a step that uses an action of the checkout."""
        for key in step.refused:
            raise _refused(f"`{key.name}` is not supported: {key.why}", step, resolve)
        action = actions.name_of(step)
        why = actions.without_effect(action)  # unevaluated: the key of a cache asks for hashFiles, as the runner can
        if action == actions.UPLOAD and not _is_known(step, _with_exported(step, self.sources, resolve)):
            why = "its inputs or its `if` are known while it runs in CI"
        if not self.job.container and actions.only_makes_room(step.run or ""):
            why = actions.FREES_ROOM
        if why:
            ci = f"uses {step.uses}" if step.uses else (step.run or "").strip()
            self.deviations.append(Deviation(f"step {step.name!r}", ci, "not run", why))
            return None
        resolve = _with_exported(step, self.sources, resolve)
        self.sources.append(replace(step, with_=actions.used_inputs(step)))
        if not step.uses:
            self.planned.append(_run_step(step, self.job, resolve, scope))
            return None
        success, failure = (_holds(step, resolve, status) for status in (SUCCESS, FAILURE))
        if step.action and (success or failure):
            first, inside = len(self.planned), f"{scope}{step.id or len(self.planned)}."
            inner = self.add(step.action.steps, _with_own_env(step, resolve).of_action(step), inside)
            words: dict[str, str] = {}
            env, goes_on = _step_env(step, resolve, words), is_true(resolve.known(step.continue_on_error, step=step))
            for at, planned in enumerate(self.planned[first:], first):
                own, goes = planned.own or _depends_on_matrix(step, self.job), goes_on or planned.continue_on_error
                planned = replace(planned, env={**env, **planned.env}, late={**words, **planned.late})
                self.planned[at] = _only_if(success, failure, replace(planned, own=own, continue_on_error=goes))
            return {name: inner.value(raw) for name, raw in step.action.outputs.items()}
        if success or failure:
            self._add_equivalent(action, step, resolve, scope)
        return None

    def _add_equivalent(self, action: str, step: Step, resolve: Resolver, scope: str) -> None:
        if action not in (actions.CHECKOUT, actions.SETUP_PYTHON, *actions.SCRIPTS):
            raise _unsupported(step, resolve, "uses an action that has no equivalent here")
        if action == actions.CHECKOUT and (repository := actions.checked_out_beside(step, resolve)):
            here = f"{repository}, as its ref is when the step begins; no submodules, no history"
            self._add_script(part("FETCH"), here, actions.fetched(step), resolve, scope)
            return
        if action in (actions.CHECKOUT, actions.SETUP_PYTHON):
            resolve.condition(step.condition, step=step)  # known only while the job runs: too late for these two
        inputs = {key: resolve.text(value, step=step) for key, value in actions.used_inputs(step).items()}
        if action in actions.SCRIPTS:
            script, here = actions.script(action, inputs, str(resolve.contexts["github"]["workspace"]), self.uploaded)
            if not script:
                raise _unsupported(step, resolve, "builds and pushes an image, or has inputs with no equivalent here")
            self._add_script(script, here, step, resolve, scope)
            return
        if action == actions.SETUP_PYTHON:
            if not inputs.get(actions.VERSION):
                raise _unsupported(step, resolve, "does not say which Python")
            self.python = inputs[actions.VERSION]
        elif elsewhere := actions.checked_out_elsewhere(inputs, resolve):
            if elsewhere == ["ref"] and actions.is_by_input(step):
                why = "the workflow asks for the ref to test"
                self.deviations.append(Deviation("ref", inputs["ref"], "your working tree", why))
                return
            raise _unsupported(step, resolve, f"checks out something else ({', '.join(elsewhere)})")
        self.deviations += actions.input_deviations(action, step, inputs)

    def _add_script(self, script: str, here: str, step: Step, resolve: Resolver, scope: str) -> None:
        """A script that stands for the step's action."""
        self.deviations.append(Deviation(f"step {step.name!r}", f"uses {step.uses}", here, "the action is not run"))
        literal = script.replace("${{", "${{ '${{' }}")
        script_step = replace(step, run=literal, uses=None, with_={}, shell="bash", working_directory=".")
        is_upload = actions.name_of(step) == actions.UPLOAD  # to the row's own directory
        own = is_upload or _depends_on_matrix(step, self.job)
        planned = _run_step(script_step, self.job, resolve, scope)
        self.planned.append(replace(planned, own=own, is_script=not is_upload))


def _is_known(step: Step, resolve: Resolver) -> bool:
    """Whether neither the inputs of a step's action nor its `if` wait for earlier steps or for GitHub."""
    values = [resolve.value([*step.with_.values()], step=step), resolve.decide(step.condition, step=step)]
    return next(unknowns(values), None) is None


# -- overrides ---------------------------------------------------------------------------------------------------------


def override_warnings(overrides: Sequence[Override], jobs: Mapping[str, Job]) -> list[str]:
    """What overrides say in vain. One for a job that this workflow does not have may be for another workflow, unless
    its name is close to the name of a job here."""
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


def overridden(job: Job, overrides: Sequence[Override]) -> Job:
    """The job with the steps that run here."""
    steps = (_overridden(step, job, overrides)[0] for step in job.steps)
    return replace(job, steps=tuple(step for step in steps if step))


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


# -- `run:` ------------------------------------------------------------------------------------------------------------


def _run_step(step: Step, job: Job, resolve: Resolver, scope: str) -> PlannedStep:
    inner = _with_own_env(step, resolve)
    on_success, on_failure = (_holds(step, inner, status) for status in (SUCCESS, FAILURE))
    id = f"{scope}{step.id}" if step.id else None
    try:
        planned = _evaluated(step, job, resolve, inner, id)
    except UnknownValueError:
        if on_success or on_failure:
            raise
        # Nothing runs with what is unknown in it. Bash is given the step so that it has its number and its name.
        name = inner.shown(step.name, step=step)
        planned = PlannedStep(name, "# its `if` never holds here\n", _SHELLS["bash"], "", id=id)
    return replace(planned, on_success=on_success, on_failure=on_failure)


def _with_own_env(step: Step, resolve: Resolver) -> Resolver:
    return resolve.with_env({**resolve.contexts["env"], **resolve.values(step.env, step=step)})


def _step_env(step: Step, resolve: Resolver, words: dict[str, str]) -> dict[str, str]:
    """The step's own variables, as `_text` has texts."""
    unset = {name for name, value in resolve.values(step.env, step=step).items() if is_unset(value)}
    return {name: "" if name in unset else _text(raw, step, resolve, words) for name, raw in step.env.items()}


def _holds(step: Step, resolve: Resolver, status: str) -> bool | str:
    """Whether the step runs as the job stands: known, or the command that finds out when it begins."""
    holds = resolve.decide(step.condition, status, step=step)
    if isinstance(holds, Unknown):
        try:
            return late_test(step.condition or "", resolve.contexts, status)
        except NotLateError:
            return resolve.condition(step.condition, status, step=step)  # which raises
    return holds


def _only_if(success: bool | str, failure: bool | str, step: PlannedStep) -> PlannedStep:
    """The step of an action that runs only if these hold. For the steps of an action that begins after a failure,
    nothing has failed yet."""
    begun = step.on_failure or step.on_success if success else step.on_success
    after = _both(failure, begun) if failure else _both(success, step.on_failure)
    return replace(step, on_success=_both(success, step.on_success), on_failure=after)


def _both(outer: bool | str, own: bool | str) -> bool | str:
    if isinstance(outer, str) and isinstance(own, str):
        return f"{{ {outer}; }} && {own}"
    return outer and own if isinstance(own, str) or not own else outer


def _text(raw: object, step: Step, resolve: Resolver, words: dict[str, str]) -> str:
    """The text, with marks for what is known late, whose words are added to `words`."""
    try:
        return resolve.text(raw, step=step)
    except UnknownValueError as unknown:
        try:
            text, found = late_text(str(raw), resolve.contexts)
        except NotLateError:
            raise unknown from None
        words.update(found)
        return text


def _evaluated(step: Step, job: Job, resolve: Resolver, inner: Resolver, id: str | None) -> PlannedStep:
    """Every part of the step as it runs; `inner` sees the step's own variables. Raises UnknownValueError."""
    words: dict[str, str] = {}
    step_env = _step_env(step, resolve, words)
    directory = step.working_directory or job.working_directory
    minutes = inner.number(step.timeout_minutes, "timeout-minutes")
    planned = PlannedStep(
        name=inner.shown(step.name, step=step),
        text=_text(step.run or "", step, inner, words),
        words=_words(step.shell or job.shell, step, inner),
        directory=inner.text(directory, step=step) if directory else str(inner.contexts["github"]["workspace"]),
        env=step_env,
        id=id,
        continue_on_error=is_true(inner.known(step.continue_on_error, step=step)),
        timeout_minutes=minutes if minutes and minutes > 0 else None,  # GitHub takes 0 for no limit
        late=words,
        own=_depends_on_matrix(step, job),
    )
    values = [f"{name}: {value}" for name, value in {**inner.contexts["env"], **step_env}.items()]
    if text := next((text for text in (planned.text, planned.name, planned.directory, *values) if "\0" in text), ""):
        raise _refused("a NUL byte, which no script and no variable can hold", step, resolve, repr(text))
    if step.id and not _ID.fullmatch(step.id):
        raise _refused(f"the id {step.id!r} is no identifier", step, resolve)
    return planned


def _words(shell: str | None, step: Step, resolve: Resolver) -> tuple[str, ...]:
    if shell in _SHELLS:
        return _SHELLS[shell]
    try:
        words = tuple(shlex.split(resolve.text(shell, step=step)))
    except ValueError as error:
        raise _refused(f"its shell cannot be parsed: {error}", step, resolve, shell or "") from None
    if "{0}" not in (shell or ""):
        valid = "valid: bash, sh, python, or a command with {0}"
        raise _refused(f"the shell {shell!r} is not supported here; {valid}", step, resolve)
    return words


def is_true(value: Any) -> bool:
    """How GitHub reads a value if it expects a boolean."""
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


def _with_exported(step: Step, before: Sequence[Step], resolve: Resolver) -> Resolver:
    """A resolver that does not know the variables which a step that ran `before` may have written to GITHUB_ENV."""
    exporting = [earlier.run for earlier in before if earlier.run and "GITHUB_ENV" in earlier.run]
    if not exporting:
        return resolve
    env = dict(resolve.contexts["env"])
    for name in referenced_names(expression_texts(step)):
        context, _, key = name.partition(".")
        if context == "env" and key and any(re.search(rf"\b{re.escape(key)}\b", text) for text in exporting):
            env[key] = Unknown.named_value(f"env.{key}")
    return resolve.with_env(env)
