"""`doctor`: queries hosts and prints what is wrong there, with the next step for each fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import QueryAnswer
from ci_tasks.cli.output import print_json
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import EXIT_BLOCKED, CiTasksError
from ci_tasks.features.doctor import basics
from ci_tasks.features.doctor import check_results as report
from ci_tasks.features.doctor import facts_of_host as facts
from ci_tasks.features.doctor.check_results import FAULT, CheckResult, fault, ok
from ci_tasks.features.doctor.host_fact import HostFact
from ci_tasks.hosts.mux import kept_connections
from ci_tasks.hosts.queries import QueryRunner
from ci_tasks.results import store
from ci_tasks.safe_output import terminal_width

OpenQueryRunner = Callable[[HostSpec], AbstractContextManager[QueryRunner]]
ResultWithAnswers = tuple[
    CheckResult, Mapping[str, Any]
]  # a result and the raw answers behind it, by the queries' names

QUERY_TIMEOUT = 20.0  # seconds for each round of queries; a cold driver takes several
_MAX_RAW_CHARS = 1 << 16  # characters of a raw answer in JSON; the kernel's log is longer, and its end counts


@dataclass(frozen=True)
class HostResult(CheckResult):
    """An entry of `doctor --json`: a result, its host, and the raw answers behind it by the queries' names."""

    host: str = ""
    answers: Mapping[str, Any] = field(default_factory=dict)


def run_doctor(
    config: Config,
    host_name: str | None,
    *,
    as_json: bool,
    images: Sequence[str],
    open_query_runner: OpenQueryRunner,
) -> int:
    """Print the results of one host, or of each in hosts.yaml. Returns 125 where there is a fault, else 0."""
    hosts = [config.host(host_name)] if host_name else [*config.hosts.values()]
    shown: list[tuple[HostSpec, ResultWithAnswers]] = []
    for host in hosts:
        of_host = examine_host(host, images, open_query_runner)
        if not as_json:
            lines = report.lines(_headline(host), [result for result, _ in of_host], terminal_width())
            print("\n".join(lines), end="\n\n", flush=True)
        shown += [(host, each) for each in of_host]
    results = [result for _, (result, _) in shown]
    if as_json:
        print_json([encode(_as_json(host, each), versioned=False) for host, each in shown])
    else:
        print(report.summary(results))
    return EXIT_BLOCKED if any(result.status == FAULT for result in results) else 0


def examine_host(host: HostSpec, images: Sequence[str], open_query_runner: OpenQueryRunner) -> list[ResultWithAnswers]:
    """All results of one host. That it cannot be reached is a result too."""
    results: list[ResultWithAnswers] = []
    try:
        with open_query_runner(host) as runner:
            for each in _query(host, images, runner):
                results.append(each)  # results before a broken connection count
    except CiTasksError as error:
        results.append((fault("SSH", error.message, error.hint), {}))
    return sorted(results, key=lambda each: report.table_position(each[0]))


def _query(host: HostSpec, images: Sequence[str], runner: QueryRunner) -> Iterator[ResultWithAnswers]:
    # Not together with other queries: slow programs would delay its answer.
    before = time.time()
    clock = runner.run_queries({basics.CLOCK: basics.CLOCK_QUERY}, QUERY_TIMEOUT)
    after = time.time()
    if host.kind != "local":
        kept = next((each for each in kept_connections() if each.address == (host.address or host.name)), None)
        by = f"; process {kept.pid} keeps the connection" if kept else ""
        yield ok("SSH", f"connected to {host.address}{by}"), {}
    answers: dict[str, QueryAnswer] = {}
    yield from _round(facts.first_round(host, _workspace(host), images), answers, runner)
    yield from _round(facts.second_round(host, images, answers), answers, runner)
    for result in basics.read_clock(clock[basics.CLOCK], before, after):
        yield result, {basics.CLOCK: {"before": before, **_raw(clock[basics.CLOCK]), "after": after}}


def _round(
    host_facts: Sequence[HostFact], answers: dict[str, QueryAnswer], runner: QueryRunner
) -> Iterator[ResultWithAnswers]:
    """The results of facts, whose queries run all at once; what was answered before is not queried again."""
    queries = {name: argv for fact in host_facts for name, argv in fact.queries.items() if name not in answers}
    if queries:
        answers.update(runner.run_queries(queries, QUERY_TIMEOUT))
    for fact in host_facts:
        raw = {name: {"command": [*argv], **_raw(answers[name])} for name, argv in fact.queries.items()}
        for result in _parse(fact, answers):
            yield result, raw


def _parse(host_fact: HostFact, answers: Mapping[str, QueryAnswer]) -> list[CheckResult]:
    """The results; for an answer that the program itself would not give, that it cannot be read."""
    try:
        return list(host_fact.parse(answers))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        names = ", ".join(host_fact.queries)
        text = f"the answer to {names} cannot be read: {type(error).__name__}"
        return [fault("SSH", text, "`doctor --json` has the raw answer")]


def _workspace(host: HostSpec) -> str:
    return str(store.home()) if host.kind == "local" else host.workspace


def _raw(answer: QueryAnswer) -> dict[str, Any]:
    return {"code": answer.code, "out": answer.out[-_MAX_RAW_CHARS:], "err": answer.err[-_MAX_RAW_CHARS:]}


def _headline(host: HostSpec) -> str:
    return f"{host.name} ({', '.join(part for part in (host.kind, host.address, host.runtime) if part)})"


def _as_json(host: HostSpec, shown: ResultWithAnswers) -> HostResult:
    result, answers = shown
    return HostResult(**vars(result), host=host.name, answers=answers)
