"""The one primitive that facts need of a host: put questions to its programs, all at once, and get their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ci_tasks.agent import processes
from ci_tasks.agent.codec import RecordError, parse
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.agent.run_directory import machine_environment


class QueryRunner(Protocol):
    """A host that can be asked, in the environment that its jobs get. The questions run at the same time, so that a
    program that hangs delays no other."""

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        """The answer to each argv, by the question's name."""
        ...


class LocalQueryRunner:
    """This machine; `host_env` is what hosts.yaml adds to its jobs' environment."""

    def __init__(self, host_env: Mapping[str, str] | None = None) -> None:
        self._host_env = host_env or {}

    def run_queries(self, queries: Mapping[str, Sequence[str]], timeout: float) -> Mapping[str, QueryAnswer]:
        return processes.ask(queries, timeout, machine_environment(self._host_env))


def python_query(script: str, *args: str) -> list[str]:
    """A question that no program of the host answers in a form worth parsing. -I: the caller's PYTHONPATH stays out."""
    return ["python3", "-I", "-c", script, *args]


def parse_json_object(answer: QueryAnswer) -> dict[str, Any]:
    """The JSON object that a program printed, of several the first; empty where it printed none."""
    try:
        value = parse(answer.out, where="answer")
    except RecordError:
        return {}
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, dict) else {}


def list_value(mapping: Mapping[str, Any], name: str) -> list[Any]:
    value = mapping.get(name)
    return value if isinstance(value, list) else []
