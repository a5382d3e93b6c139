"""A test's coverage in one line, as the tracking issue says it."""

from __future__ import annotations

import re

from ci_tasks.suites.coverage.coverage import Entry
from ci_tasks.suites.coverage.facts import E2E, UNREAD, VACUOUS, Facts

_MOST_LAYOUTS = 8


def main_coverage(entry: Entry) -> str:
    """Model, algorithm, layout, placement and features; for unit tests what their docstring says."""
    return ", ".join(parts(entry))


def parts(entry: Entry) -> list[str]:
    """The same, one by one."""
    found = entry.facts
    if entry.missing:
        return ["the checkout has no such file"]
    if found.kind == E2E:
        return [part for part in (*_trained(found), *entry.features) if part]
    return [_untrained(entry, found)]


def _untrained(entry: Entry, found: Facts) -> str:
    said = _sentence(found.doc) or _from_name(entry.test)
    if found.kind == VACUOUS:
        return f"{said} (runs nothing: no `__main__`)"
    if found.kind == UNREAD and found.problem:
        return f"not read: {found.problem.why}"
    count = f" ({found.tests} test{'s' if found.tests != 1 else ''})" if found.tests else ""
    return f"{said}{count}"


def _trained(found: Facts) -> list[str]:
    parts = [_model(found), "/".join(found.algorithms), _layouts(found), " then ".join(found.placements)]
    if found.pd:
        parts.append("PD")
    if len(found.gpus) > 1:
        parts.append(f"on {', '.join(map(str, found.gpus))} GPUs")
    if found.trainings > 1:
        parts.append(f"{found.trainings} trainings")
    return parts


def _model(found: Facts) -> str:
    if found.model is None:
        return ""
    said = found.model.kind.lower() in found.model.name.lower()
    return found.model.name if said else f"{found.model.name} {found.model.kind}"


def _layouts(found: Facts) -> str:
    if len(found.layouts) == 1:
        return "" if found.layouts == ("DP",) else found.layouts[0]
    shown = [layout.replace(" + ", "+") for layout in found.layouts[:_MOST_LAYOUTS]]
    return f"layouts {' / '.join(shown)}" if shown else ""


def _sentence(doc: str) -> str:
    """The first sentence of a docstring, without the markup of code."""
    first = re.split(r"(?<=[a-z0-9)`])[.:](?:\s|$)", doc.replace("``", "`"), maxsplit=1)[0].strip().rstrip(".")
    return first if len(first) <= 160 else first[:159].rstrip() + "…"


def _from_name(test: str) -> str:
    return test.rpartition("/")[2].removesuffix(".py").removeprefix("test_").replace("_", " ")
