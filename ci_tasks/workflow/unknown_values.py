"""How a person gives a value that only GitHub knows."""

from __future__ import annotations

from collections.abc import Iterable

from ci_tasks.errors import WorkflowError
from ci_tasks.workflow.expressions import Unknown


class UnknownValueError(WorkflowError):
    """A value that only GitHub knows would decide what runs."""


def why_unknown(unknown: Unknown) -> str:
    names = ", ".join(unknown.names)
    if all(name.startswith("steps.") for name in unknown.names):
        return f"needs the outcome or an output of an earlier step, which is known only while it runs: {names}"
    if all(_is_secret(name) for name in unknown.names):
        return f"needs {names}, which is not in your environment"
    return f"needs {names}, which only GitHub knows"


def how_to_give(names: Iterable[str]) -> str:
    """The options that give the values, for an error's hint; "" where there is none."""
    ways = list(dict.fromkeys(way for way in map(_way, names) if way))
    overrides = ", or the same under `overrides` in hosts.yaml" if any(way.startswith("--") for way in ways) else ""
    return f"give {' '.join(ways)}{overrides}" if ways else ""


def is_unset(value: object) -> bool:
    """Whether the value is a secret or an input that nobody gave: empty in a variable, as for a fork's pull request."""
    return isinstance(value, Unknown) and value.absent and value.names[0].startswith(("secrets.", "inputs."))


def _is_secret(name: str) -> bool:
    return name.startswith("secrets.")


def _way(name: str) -> str:
    context, _, rest = name.partition(".")
    if context == "vars":
        return f"--var {rest}=VALUE"
    if context == "inputs" or name.startswith("github.event.inputs."):
        return f"--input {rest.removeprefix('event.inputs.')}=VALUE"
    if context == "needs" and ".outputs." in rest:
        job, _, output = rest.partition(".outputs.")
        return f"--output {job}.{output}=VALUE"
    if context == "secrets":
        return f"the environment variable {rest} (empty if CI has no such secret)"
    return "--github-event FILE" if name.startswith(_OF_THE_EVENT) else ""


_OF_THE_EVENT = ("github.event.", "github.head_ref", "github.actor", "github.triggering_actor")
