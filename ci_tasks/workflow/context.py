"""The event CI would be in: a pull request that carries the label, as GitHub's contexts; and a job's values under them.

Names and shapes follow GitHub's "Contexts reference", and "Webhook events and payloads" for the pull request. What only
GitHub knows is Unknown. There is no pull request yet, so its number and its branch are absent: they are null in `${{
github.event.pull_request.number || 'non-pr' }}`, as outside of a pull request, and have no text.

Every error names the job, the step, the line and the text. `Resolver.text` and its callers raise UnknownValueError for
a value that only GitHub knows; `value`, `decide` and `shown` are for callers that can do without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import reduce
from typing import Any

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import WorkflowError
from ci_tasks.given_values import NOTHING_GIVEN, GivenValues
from ci_tasks.workflow import expressions, secrets
from ci_tasks.workflow.expressions import HASH_FILES, SUCCESS, ExpressionError
from ci_tasks.workflow.model import CALLED, Job, Row, Step, Workflow, WorkflowInput
from ci_tasks.workflow.values import OpenObject, Unknown, Value, index, parse_number, shown, to_string, unknowns

_UNKNOWN_SHA = "0" * 40
_EVENT = "github.event"
# What stands here for a value of GitHub's, in a run that was not started there.
ASSUMED = (
    *("github.event.pull_request.draft", "github.event.pull_request.merged", "github.event.pull_request.state"),
    *("github.event.pull_request.head.repo.fork", "github.base_ref", "github.event.pull_request.base.ref"),
    *("github.actor", "github.triggering_actor", "github.run_id", "github.run_number", "github.run_attempt"),
)


@dataclass(frozen=True)
class EventContext:
    """What a run's contexts are made of. `base_sha` is "" if the base's commit is not known.

    `outputs` come from the jobs that were run for them, and `artifacts` what these uploaded, as tar.gz in base64;
    `secrets` are names, and so are `empty_secrets`, which are set to nothing. `read_secret` gives the value of one for
    a comparison, None if it is not set. `given` is what a person says of what only GitHub knows.
    """

    sha: str = _UNKNOWN_SHA
    repository: str = "owner/repository"
    workspace: str = "/github/workspace"
    base: str = "main"
    base_sha: str = ""
    secrets: tuple[str, ...] = ()
    empty_secrets: tuple[str, ...] = ()
    read_secret: Callable[[str], str | None] = field(default=lambda name: None, repr=False, compare=False)
    outputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    given: GivenValues = NOTHING_GIVEN


def contexts(event: EventContext, workflow: Workflow, job: Job, row: Row) -> dict[str, Any]:
    """GitHub's contexts for one row of `job`, as the expression evaluator takes them. Of the row count its trigger, and
    its entry of the matrix."""
    outer = _outer(event, workflow, job, row)
    inputs = _called_inputs(job, outer) if outer else _inputs(event, workflow)
    machine: dict[str, Value] = {"os": "Linux", "arch": "X64", "name": "ci-tasks", "temp": "/tmp", "debug": None}
    needs = {name.rpartition(CALLED)[2]: name for name in job.needs}
    values: dict[str, Any] = {
        "github": _github(event, workflow, row, inputs),
        "env": {},
        "matrix": dict(row.matrix),
        "inputs": inputs,
        "secrets": _secrets(event, job, outer),
        "needs": {name: {"outputs": _outputs(event, workflow, id), "result": "success"} for name, id in needs.items()},
        "steps": {},
        "runner": OpenObject("runner", {**machine, "environment": "self-hosted"}),
        "vars": OpenObject("vars", dict(event.given.vars)),
        "job": {"status": "success"},
    }
    strategy = {"job-index": row.index, "job-total": row.total, "fail-fast": _evaluated(job.fail_fast, values)}
    limit = _evaluated(job.max_parallel, values)
    return {**values, "strategy": {**strategy, "max-parallel": row.total if limit is None else limit}}


def _outer(event: EventContext, workflow: Workflow, job: Job, row: Row) -> dict[str, Any] | None:
    """The contexts of the job that calls this one."""
    if job.call is None:
        return None
    matrix = row.callers[-1] if row.callers else {}
    return contexts(event, workflow, job.call.caller, replace(row, matrix=matrix, callers=row.callers[:-1]))


def _called_inputs(job: Job, outer: Mapping[str, Any]) -> OpenObject:
    """What the caller gives, else the defaults, each of its declared type."""
    assert job.call is not None
    empty = {"boolean": False, "number": 0}
    inputs: dict[str, Value] = {}
    for name, body in job.call.workflow.inputs.items():
        raw = job.call.caller.with_.get(name, body.default)
        value = empty.get(body.type, "") if raw is None else _evaluated(raw, outer)
        if body.type == "boolean" and isinstance(value, str):
            value = value == "true"
        inputs[name] = to_string(value) if body.type == "string" and not isinstance(value, Unknown) else value
    return OpenObject("inputs", inputs, absent=True)


def _secrets(event: EventContext, job: Job, outer: Mapping[str, Any] | None) -> secrets.SecretsObject:
    """All of them; for a job that is called, the ones that its caller passes on."""
    if outer is None:
        return secrets.SecretsObject(event.secrets, event.empty_secrets, event.read_secret)
    assert job.call is not None
    theirs, passed = outer["secrets"], job.call.caller.secrets
    if passed == "inherit":
        return theirs  # type: ignore[no-any-return]
    own = secrets.SecretsObject(read=event.read_secret)
    given = passed if isinstance(passed, Mapping) else {}
    own.update({name: _evaluated(raw, outer) for name, raw in given.items()})
    own.update({name: value for name, value in theirs.items() if name == "GITHUB_TOKEN"})
    return own


def _evaluated(raw: Any, values: Mapping[str, Value]) -> Value:
    """A number or boolean of the job's `strategy`; Unknown if it cannot be evaluated."""
    try:
        return expressions.interpolate(raw, values) if isinstance(raw, str) else raw
    except ExpressionError:
        return Unknown((raw,))


def _inputs(event: EventContext, workflow: Workflow) -> OpenObject:
    """Absent if a pull request or a push starts the workflow, unless they are given."""
    inputs: dict[str, Value] = {
        name: body.default if body.default is not None else Unknown.named_value(f"inputs.{name}")
        for name, body in (workflow.inputs if workflow.needs_inputs else {}).items()
    }
    for name, text in event.given.inputs.items():
        kind = workflow.inputs.get(name, WorkflowInput()).type
        of_boolean: Value = text.strip().lower() == "true" if kind == "boolean" else text
        inputs[name] = parse_number(text) if kind == "number" else of_boolean
    return OpenObject("inputs", inputs, absent=True)


def _outputs(event: EventContext, workflow: Workflow, id: str) -> dict[str, Value]:
    """The outputs of a needed job: given, of its own run, or known only on GitHub."""
    name = f"needs.{id}.outputs"
    known: dict[str, Value] = {**event.outputs.get(id, {}), **event.given.outputs.get(id, {})}
    needed = workflow.jobs.get(id)
    if needed is None or needed.uses:
        return OpenObject(name, known)
    return {**{output: Unknown.named_value(f"{name}.{output}") for output in needed.outputs}, **known}


def _github(event: EventContext, workflow: Workflow, row: Row, inputs: Mapping[str, Value]) -> dict[str, Value]:
    payload = _payload(event, workflow, row.trigger, inputs)
    whole: Value = payload
    number, head, base, actor = (reduce(index, path.split("."), whole) for path in _OF_THE_PAYLOAD)
    ref = f"{0 if isinstance(number, Unknown) else to_string(number)}/merge"
    token = secrets.marks(event.secrets).get("GITHUB_TOKEN")
    by = "ci-tasks" if isinstance(actor, Unknown) else actor
    known: dict[str, Value] = {
        **_FIXED, "event": payload, "sha": event.sha, "ref": f"refs/pull/{ref}", "ref_name": ref,
        "head_ref": Unknown.named_value("github.head_ref", absent=True) if isinstance(head, Unknown) else head,
        "base_ref": base, "repository": event.repository, "repository_owner": event.repository.split("/")[0],
        "workspace": event.workspace, "workflow": workflow.name, "job": row.job.rpartition(CALLED)[2],
        **dict.fromkeys(("actor", "triggering_actor"), by),
        "token": token or Unknown.named_value("secrets.GITHUB_TOKEN", absent=True),
    }  # fmt: skip
    return OpenObject("github", known)


_FIXED = {
    "event_name": "pull_request", "ref_type": "branch", "run_id": "0", "run_number": "0", "run_attempt": "1",
    "server_url": "https://github.com", "api_url": "https://api.github.com",
    "graphql_url": "https://api.github.com/graphql",
}  # fmt: skip
_NOT_YET = ("number", "title", "body")  # of a pull request that is still to be made
_OF_THE_PAYLOAD = ("number", "pull_request.head.ref", "pull_request.base.ref", "sender.login")


def _payload(
    event: EventContext, workflow: Workflow, trigger: str | None, inputs: Mapping[str, Value]
) -> dict[str, Value]:
    """The payload of `pull_request: labeled`. A key of other events' payloads is null in it."""
    owner, _, name = event.repository.partition("/")
    repository = {"full_name": event.repository, "name": name or owner, "owner": {"login": owner}}
    label: dict[str, Value] = {"name": trigger} if trigger else {}
    given = event.given.event
    pull_request = {
        **{key: Unknown.named_value(f"{_EVENT}.pull_request.{key}", absent=True) for key in _NOT_YET},
        "draft": False,
        "merged": False,
        "state": "open",
        "labels": [label] if label else [],
        "head": {"sha": event.sha, "repo": {**repository, "fork": False}},
        "base": {"ref": event.base, "repo": repository, **({"sha": event.base_sha} if event.base_sha else {})},
    }
    payload: dict[str, Value] = {
        "action": "labeled",
        "label": OpenObject(f"{_EVENT}.label", label),
        "number": Unknown.named_value(f"{_EVENT}.number", absent=True),
        "pull_request": _open(f"{_EVENT}.pull_request", pull_request),
        "repository": _open(f"{_EVENT}.repository", repository),
        **{name: OpenObject(f"{_EVENT}.{name}") for name in ("sender", "organization", "installation", "enterprise")},
    }
    if workflow.needs_inputs or event.given.inputs:
        payload["inputs"] = {
            name: Unknown.named_value(f"inputs.{name}") if isinstance(value, Unknown) else to_string(value)
            for name, value in inputs.items()
        }
    # A payload names the number twice, and a person may give it once.
    of_request = given.get("pull_request")
    number = given.get("number", of_request.get("number") if isinstance(of_request, Mapping) else None)
    _merge(payload, {} if number is None else {"number": number, "pull_request": {"number": number}})
    _merge(payload, given)
    return payload


def _open(name: str, members: Mapping[str, Any]) -> OpenObject:
    """An object whose other members only GitHub knows; the same holds for the objects in it."""
    inner = {key: _open(f"{name}.{key}", value) if isinstance(value, dict) else value for key, value in members.items()}
    return OpenObject(name, inner)


def _merge(payload: dict[str, Value], given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        before = payload.get(key)
        if isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value)
        elif isinstance(value, Mapping) and isinstance(payload, OpenObject):
            payload[key] = _open(f"{payload.name}.{key}", value)
        else:
            payload[key] = value


# -- evaluating --------------------------------------------------------------------------------------------------------

_OF_THE_EVENT = ("github.event.", "github.head_ref", "github.actor", "github.triggering_actor")


class UnknownValueError(WorkflowError):
    """A value that only GitHub knows would decide what runs. `names` of its contexts give it."""

    names: Sequence[str] = ()


class Resolver:
    """Evaluates values of one job under fixed contexts. All methods raise WorkflowError."""

    def __init__(self, file: str, job: str, line: int, contexts: Mapping[str, Any]) -> None:
        self.file, self.job, self.line = file, job, line
        self.contexts = dict(contexts)

    def with_env(self, env: Mapping[str, Any]) -> Resolver:
        return self.with_contexts(env=dict(env))

    def with_contexts(self, **contexts: Any) -> Resolver:
        return Resolver(self.file, self.job, self.line, {**self.contexts, **contexts})

    def of_action(self, step: Step) -> Resolver:
        """For the steps of the action of the checkout that a step uses: its inputs, and no step before its own."""
        if step.action is None:
            return self
        defaults = {name: raw for name, raw in step.action.inputs.items() if name not in step.with_}
        inputs = {**self.with_contexts(inputs={}).values(defaults), **self.values(step.with_, step=step)}
        return Resolver(step.action.file, self.job, self.line, {**self.contexts, "inputs": inputs, "steps": {}})

    def value(self, raw: Any, *, step: Step | None = None) -> Any:
        """Any YAML value with its expressions evaluated; a scalar that is one expression keeps its type. Unknown for
        what only GitHub knows."""
        if isinstance(raw, str):
            try:
                return expressions.interpolate(raw, self.contexts)
            except ExpressionError as error:
                raise self.error(error, raw, step) from None
        if isinstance(raw, Mapping):
            return {str(key): self.value(item, step=step) for key, item in raw.items()}
        return [self.value(item, step=step) for item in raw] if isinstance(raw, list) else raw

    def known(self, raw: Any, *, step: Step | None = None) -> Any:
        """As `value`, without unknown parts."""
        value = self.value(raw, step=step)
        for unknown in unknowns(value):
            raise self._unknown(unknown, raw, step)
        return value

    def text(self, raw: Any, *, step: Step | None = None) -> str:
        """A value as GitHub writes it into an environment variable or a script."""
        return to_string(self.known(raw, step=step))

    def shown(self, raw: Any, *, step: Step | None = None) -> str:
        """As `text`, for a person: what is unknown by its name."""
        return shown(self.value(raw, step=step))

    def strings(self, raw: Mapping[str, Any], *, step: Step | None = None) -> dict[str, str]:
        """The variables of an `env`. One that is a secret or an input, and nothing else, is empty if not given."""
        values = self.values(raw, step=step)
        return {name: "" if is_unset(value) else self.text(raw[name], step=step) for name, value in values.items()}

    def values(self, raw: Mapping[str, Any], *, step: Step | None = None) -> dict[str, Any]:
        """As `strings`, as expressions see them: Unknown if only GitHub knows the text."""
        values = {name: self.value(value, step=step) for name, value in raw.items()}
        return {name: value if isinstance(value, Unknown) else to_string(value) for name, value in values.items()}

    def number(self, raw: Any, what: str) -> float | None:
        value = self.known(raw)
        if value is None or value == "":
            return None
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            line, text = getattr(raw, "line", 0) or self.line, f"{what}: {raw}"
            message = f"{what} is a number, not {value!r}"
            raise WorkflowError(message, file=self.file, job=self.job, line=line, text=text)
        return number

    def condition(self, raw: str | None, status: str = SUCCESS, *, step: Step | None = None) -> bool:
        """Whether an `if:` lets its job or step run, given how the job stands."""
        holds = self.decide(raw, status, step=step)
        if isinstance(holds, Unknown):
            raise self._unknown(holds, raw, step)
        return holds

    def decide(self, raw: str | None, status: str = SUCCESS, *, step: Step | None = None) -> bool | Unknown:
        """As `condition`; Unknown if only GitHub can say."""
        try:
            return expressions.condition(raw or "", self.contexts, status)
        except ExpressionError as error:
            raise self.error(error, raw or "", step) from None

    def check(self, raw: Any, condition: str | None = None, *, step: Step | None = None) -> None:
        """Whether every expression in a value and in an `if:` can be read, without evaluating it."""
        for item in raw.values() if isinstance(raw, Mapping) else raw if isinstance(raw, list) else ():
            self.check(item, step=step)
        text = raw if isinstance(raw, str) else ""
        try:
            expressions.references(text)
            text = condition or ""
            expressions.label_tests(text)
        except ExpressionError as error:
            raise self.error(error, text, step) from None

    def error(self, error: ExpressionError, raw: str, step: Step | None) -> WorkflowError:
        """Names the line of the file that has the refused part of an expression. An expression that is not found there,
        such as in an escaped text, gets the position of the scalar."""
        return WorkflowError(error.message, **self._place(raw, error.text, error.position, step))

    def _unknown(self, unknown: Unknown, raw: Any, step: Step | None) -> UnknownValueError:
        # Its name is what the file says, but for the spelling of an index.
        place = self._place(raw if isinstance(raw, str) else "", unknown.names[0].removesuffix(".*"), 0, step)
        error = UnknownValueError(_why_unknown(unknown), **place, hint=how_to_give(unknown.names))
        error.names = unknown.names
        return error

    def _place(self, raw: str, text: str, position: int, step: Step | None) -> dict[str, Any]:
        begin = getattr(raw, "line", 0) or (step.line if step else self.line)
        lines = list(getattr(raw, "source", ())) or raw.splitlines() or [""]
        words = [f"${{{{ {text}", text, *text[position:].split()[:1]]
        offset = next((at for word in words if word for at, line in enumerate(lines) if word in line), 0)
        names = {"file": self.file, "job": self.job, "step": step.name if step else ""}
        return {**names, "line": begin + (offset if getattr(raw, "source", ()) else 0), "text": lines[offset]}


def how_to_give(names: Iterable[str]) -> str:
    """The options that give the values, for an error's hint; "" if there is none."""
    ways = list(dict.fromkeys(way for way in map(_way, names) if way))
    return f"give {' '.join(ways)}" if ways else ""


def is_unset(value: object) -> bool:
    """Whether the value is a secret or an input, not given: empty in a variable, as for a fork's pull request."""
    return isinstance(value, Unknown) and value.absent and value.names[0].startswith(("secrets.", "inputs."))


def _why_unknown(unknown: Unknown) -> str:
    names = ", ".join(unknown.names)
    if all(name.startswith("steps.") for name in unknown.names):
        return f"needs the outcome or an output of an earlier step, which is known only while it runs: {names}"
    if HASH_FILES in unknown.names:
        return f"needs {names}, which is known only while the job runs"
    if all(name.startswith("secrets.") for name in unknown.names):
        return f"needs {names}, which is not in your environment"
    return f"needs {names}, which only GitHub knows"


def _way(name: str) -> str:
    context, _, rest = name.partition(".")
    if context == "vars":
        return f"--var {rest}=VALUE"
    if context == "inputs" or name.startswith("github.event.inputs."):
        return f"--input {rest.removeprefix('event.inputs.')}=VALUE"
    if context == "needs" and ".outputs." in rest:
        given = f"{rest.replace('.outputs.', '.', 1)}=VALUE"
        return f"--output '{given}'" if " " in given else f"--output {given}"
    if context == "secrets":
        return f"the environment variable {rest} (empty if CI has no such secret)"
    return "--github-event FILE" if name.startswith(_OF_THE_EVENT) else ""
