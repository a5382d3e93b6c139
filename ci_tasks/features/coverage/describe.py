"""A test's coverage in one line, as the tracking issue says it."""

from __future__ import annotations

import re

from ci_tasks.errors import counted
from ci_tasks.features.coverage.coverage import CoveredTest
from ci_tasks.features.coverage.facts import E2E, UNREAD, VACUOUS, RowFacts

_MOST_LAYOUTS = 8


def main_coverage(test: CoveredTest) -> str:
    """Model, algorithm, layout, placement and features; for unit tests what their docstring says."""
    return ", ".join(parts(test))


def parts(test: CoveredTest) -> list[str]:
    """The same, one by one."""
    facts = test.facts
    if test.missing:
        return ["the checkout has no such file"]
    if facts.kind == E2E:
        end = "not seen to its end" if facts.problem else ""
        return [part for part in (*_trained(facts), *test.features, end) if part]
    return [_untrained(test, facts)]


def _untrained(test: CoveredTest, facts: RowFacts) -> str:
    description = _sentence(facts.doc) or _from_name(test.path)
    if facts.kind == VACUOUS:
        return f"{description} (runs nothing: no `__main__`)"
    if facts.kind == UNREAD and facts.problem:
        return f"not seen: {facts.problem}"
    count = f" ({counted(facts.tests, 'test')})" if facts.tests else ""
    return f"{description}{count}"


def _trained(facts: RowFacts) -> list[str]:
    parts = [_model(facts), "/".join(facts.algorithms), _layouts(facts), " then ".join(facts.placements)]
    if facts.pd:
        parts.append("PD")
    if len(facts.gpus) > 1:
        parts.append(f"on {', '.join(map(str, facts.gpus))} GPUs")
    if facts.trainings > 1:
        parts.append(f"{facts.trainings} trainings")
    return parts


def _model(facts: RowFacts) -> str:
    if facts.model is None:
        return ""
    names_kind = facts.model.kind.lower() in facts.model.name.lower()
    return facts.model.name if names_kind else f"{facts.model.name} {facts.model.kind}"


def _layouts(facts: RowFacts) -> str:
    if len(facts.layouts) == 1:
        return "" if facts.layouts == ("DP",) else facts.layouts[0]
    shown = [layout.replace(" + ", "+") for layout in facts.layouts[:_MOST_LAYOUTS]]
    return f"layouts {' / '.join(shown)}" if shown else ""


def _sentence(doc: str) -> str:
    """The first sentence of a docstring, without the markup of code."""
    first = re.split(r"(?<=[a-z0-9)`])[.:](?:\s|$)", doc.replace("``", "`"), maxsplit=1)[0].strip().rstrip(".")
    return first if len(first) <= 160 else first[:159].rstrip() + "…"


def _from_name(test: str) -> str:
    return test.rpartition("/")[2].removesuffix(".py").removeprefix("test_").replace("_", " ")
