"""`doctor`: hosts are asked, and what they answer is told with the next step for each fault."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ci_tasks.config import Config
from ci_tasks.errors import EXIT_BLOCKED, Blocked, CiTasksError
from ci_tasks.hosts import facts
from ci_tasks.hosts.ask import Answer, Asker, LocalAsker
from ci_tasks.hosts.facts import basics
from ci_tasks.hosts.facts.fact import Fact
from ci_tasks.model import HostSpec
from ci_tasks.report import doctor as report
from ci_tasks.report.doctor import FAULT, OK, Finding
from ci_tasks.runs import store

OpenAsker = Callable[[HostSpec], AbstractContextManager[Asker]]
Shown = tuple[Finding, Mapping[str, Any]]  # a finding and the raw answers behind it, by the questions' names

PATIENCE = 20.0  # seconds for each round of questions; a cold driver takes several
_LONGEST = 1 << 16  # characters of a raw answer in JSON; the kernel's log is longer, and its end counts


def open_local(host: HostSpec) -> AbstractContextManager[Asker]:
    if host.kind != "local":
        raise Blocked(f"hosts of kind {host.kind} cannot be asked yet")
    return nullcontext(LocalAsker())


def doctor(
    config: Config,
    host_name: str | None,
    *,
    as_json: bool,
    images: Sequence[str] = (),
    open_asker: OpenAsker = open_local,
) -> int:
    """Print what one host, or each of hosts.yaml, lacks. Returns 125 where something is at fault, else 0."""
    hosts = [config.host(host_name)] if host_name else [*config.hosts.values()]
    shown: list[tuple[HostSpec, Shown]] = []
    for host in hosts:
        found = examine(host, images, open_asker)
        if not as_json:
            print("\n".join(report.lines(_headline(host), [finding for finding, _ in found])), end="\n\n", flush=True)
        shown += [(host, each) for each in found]
    findings = [finding for _, (finding, _) in shown]
    if as_json:
        print(json.dumps([_public(host, each) for host, each in shown], indent=2, ensure_ascii=False))
    else:
        print(report.summary(findings))
    return EXIT_BLOCKED if any(finding.status == FAULT for finding in findings) else 0


def examine(host: HostSpec, images: Sequence[str], open_asker: OpenAsker) -> list[Shown]:
    """Everything that is found about one host. That it cannot be reached is a finding too."""
    found: list[Shown] = []
    try:
        with open_asker(host) as asker:
            for each in _asked(host, images, asker):
                found.append(each)  # what was found before a link died stays found
    except CiTasksError as error:
        found.append((Finding("SSH", FAULT, error.message, error.hint), {}))
    return sorted(found, key=lambda each: report.place(each[0]))


def _asked(host: HostSpec, images: Sequence[str], asker: Asker) -> Iterator[Shown]:
    if host.kind != "local":
        yield Finding("SSH", OK, f"connected to {host.address}"), {}
    # Alone: beside slow programs the time of its answer would say little.
    before = time.time()
    clock = asker.ask({basics.CLOCK: basics.CLOCK_QUESTION}, PATIENCE)
    after = time.time()
    answers: dict[str, Answer] = {}
    yield from _round(facts.first(host, _workspace(host), images), answers, asker)
    yield from _round(facts.second(host, images, answers), answers, asker)
    for finding in basics.read_clock(clock[basics.CLOCK], before, after):
        yield finding, {basics.CLOCK: {"before": before, **_raw(clock[basics.CLOCK]), "after": after}}


def _round(asked: Sequence[Fact], answers: dict[str, Answer], asker: Asker) -> Iterator[Shown]:
    """The findings of facts whose questions are put all at once; what was answered before is not asked again."""
    questions = {name: argv for fact in asked for name, argv in fact.questions.items() if name not in answers}
    if questions:
        answers.update(asker.ask(questions, PATIENCE))
    for fact in asked:
        raw = {name: {"command": [*argv], **_raw(answers[name])} for name, argv in fact.questions.items()}
        for finding in fact.read(answers):
            yield finding, raw


def _workspace(host: HostSpec) -> str:
    return str(store.home()) if host.kind == "local" else host.workspace


def _raw(answer: Answer) -> dict[str, Any]:
    return {"code": answer.code, "out": answer.out[-_LONGEST:], "err": answer.err[-_LONGEST:]}


def _headline(host: HostSpec) -> str:
    return f"{host.name} ({', '.join(part for part in (host.kind, host.address, host.runtime) if part)})"


def _public(host: HostSpec, shown: Shown) -> dict[str, Any]:
    finding, raw = shown
    return {
        "host": host.name,
        "topic": finding.topic,
        "status": finding.status,
        "text": finding.text,
        "next_step": finding.next_step,
        "answers": raw,
    }
