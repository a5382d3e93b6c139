"""What the probe saw of a run's end, beside the lines of its log: exceptions that no process caught."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.agent.probe.records import LinkedException, RunEvidence
from ci_tasks.features.failures.triage.candidate_reader import PYTEST, Candidate
from ci_tasks.features.failures.triage.rules import WRAPPER, Rules
from ci_tasks.results.probe_evidence import task_exceptions, uncaught_exceptions


def uncaught_candidates(candidates: Sequence[Candidate], evidence: RunEvidence | None, rules: Rules) -> list[Candidate]:
    """Those that print the exception which ended a process first; none where the log has none of them.

    One that only passes on what another process raised does not count; then those that tasks raised do. Where pytest
    reported a failure, a process that a test started may well end with an exception, so there the log decides.
    """
    if evidence is None or any(candidate.kind == PYTEST for candidate in candidates):
        return []
    noted = [*uncaught_exceptions(evidence), *task_exceptions(evidence)]
    for exception in [exception for _, exception in noted]:
        rule = rules.of(_text(exception.chain[0]))
        if rule is not None and rule.rank == WRAPPER:
            continue
        printed = [candidate for candidate in candidates if any(_prints(candidate, link) for link in exception.chain)]
        if printed:
            return printed
    return []


def _prints(candidate: Candidate, link: LinkedException) -> bool:
    return candidate.text.startswith(_text(link)) or (
        bool(candidate.type) and _short(candidate.type) == _short(link.type) and _message(link) in candidate.text
    )


def _text(link: LinkedException) -> str:
    message = _message(link)
    name = link.type.removeprefix("builtins.")
    return f"{name}: {message}" if message else name


def _message(link: LinkedException) -> str:
    return next(iter(link.message.strip().splitlines()), "").strip()[:200]


def _short(name: str) -> str:
    return name.split("(")[0].rsplit(".", 1)[-1]
