"""A script's own names of its containers, which run here under other names: `docker exec NAME` finds them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..records import Deviation, DockerInvocation
from .docker_argv import is_run, parse_run, split_global

_REMOVED = "removed by ci-tasks once its logs are copied"


def names_here(invocations: Sequence[DockerInvocation]) -> dict[str, str]:
    """CI's name → that of the last container which was started for it."""
    found: dict[str, str] = {}
    for invocation in invocations:
        name = parse_run(invocation.ci).last("name") if is_run(invocation.ci) else None
        if name and invocation.name:
            found[name] = invocation.name
    return found


def with_names_here(argv: Sequence[str], names: Mapping[str, str]) -> tuple[list[str], list[Deviation]]:
    """A command other than `run` with the names that its containers have here. One that removes them stops them, so
    that their logs can be copied."""
    before, args = split_global(argv)
    at = 2 if args[:1] == ["container"] else 1
    verb, rest = args[at - 1 : at], args[at:]
    if verb == ["exec"]:  # what follows the container is the command's own
        place = next((number for number, word in enumerate(rest) if word in names), None)
        here = [names[word] if number == place else word for number, word in enumerate(rest)]
    else:
        here = [_name_here(word, names) for word in rest]
    if here == rest:
        return list(argv), []
    asked = [word for word in rest if not word.startswith("-")]
    if verb == ["rm"] and all(word in names for word in asked):
        command = ["stop", "-t", "0", *(names[word] for word in asked)]
        return [*before, *command], [Deviation("docker rm", " ".join(asked), "stopped", _REMOVED)]
    return [*before, *args[:at], *here], []


def _name_here(word: str, names: Mapping[str, str]) -> str:
    """`NAME`, or `NAME:PATH` of `docker cp`."""
    name, colon, path = word.partition(":")
    return f"{names[name]}{colon}{path}" if name in names else word
