"""Which labels a pull request starts, by the files that it changes, its base and its labels. Pure.

The rules are those of GitHub's "Workflow syntax": `on.pull_request` with `paths`, `paths-ignore`, `branches` and
`branches-ignore`, and its "Filter pattern cheat sheet". Of several patterns the last that matches counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.workflow import rows
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import Job, Workflow
from ci_tasks.workflow.suite import label_of
from ci_tasks.workflow.values import Unknown

# A wildcard, or one character and how often.
_TOKEN = re.compile(r"(\*\*/|\*\*?)|(\[\w+(?:-\w+)*\]|\\?.)([?+]?)", re.DOTALL)
_MEANS = {"**/": ".", "**": ".", "*": "[^/]"}


@dataclass(frozen=True)
class LabelStart:
    """Whether a pull request `starts` a label of a workflow: "yes", "no", "with label" (`pr_label`), or "?" if only
    GitHub knows. `why` it does not start, or not without a label."""

    workflow: str
    label: str
    starts: str
    pr_label: str | None
    why: str


def label_starts(workflow: Workflow, event: EventContext, changed: Sequence[str]) -> Iterator[LabelStart]:
    """An entry for each label of the workflow, for a pull request that changes the files `changed`."""
    why = why_not_started(workflow, event.base, changed)
    for job in workflow.labelled:
        trigger = rows.trigger_of(workflow, job)
        outcome = ("no", why) if why else _runs(workflow, job, event, trigger)
        yield LabelStart(workflow.path, label_of(job.id), outcome[0], trigger, outcome[1])


def why_not_started(workflow: Workflow, base: str, changed: Sequence[str]) -> str:
    """Why a pull request to the branch `base` does not start the workflow; "" if it does. Raises re.error."""
    if not workflow.is_for_pull_requests:
        return f"starts on {', '.join(workflow.events)} only"
    for kind, names in (("branches", [base]), ("paths", changed or ["no changed file"])):
        wanted, ignored = workflow.filters.get(kind, ()), workflow.filters.get(f"{kind}-ignore", ())
        if wanted and not any(_is_selected(name, wanted) for name in names):
            return f"{kind} {', '.join(names[:3])}: none matches {', '.join(wanted)}"
        if ignored and all(_is_selected(name, ignored) for name in names):
            return f"{kind} {', '.join(names[:3])}: ignored by {', '.join(ignored)}"
    return ""


def _runs(workflow: Workflow, job: Job, event: EventContext, trigger: str | None) -> tuple[str, str]:
    """Whether the job runs in a workflow that was started, and why not."""
    row = replace(rows.refused_row(job, ""), trigger=trigger)
    holds = rows.row_resolver(workflow, job, row, event).decide(job.condition)
    if holds is not True:
        word, why = ("?", "only GitHub knows:") if isinstance(holds, Unknown) else ("no", "its if is false,")
        return word, " ".join([why, *(job.condition or "").split()])
    return ("with label", f"with the PR label {trigger}") if trigger else ("yes", "")


def _is_selected(text: str, patterns: Sequence[str]) -> bool:
    found = [pattern for pattern in patterns if _matches(text, pattern.removeprefix("!"))]
    return bool(found) and not found[-1].startswith("!")


def _matches(text: str, pattern: str) -> bool:
    """All ways at once: `re` would try them one after the other, without end for many wildcards."""
    starts = {0}
    for wild, one, times in _TOKEN.findall(pattern):
        is_one = re.compile(_MEANS.get(wild) or (one if one[0] == "[" else re.escape(one[-1])), re.DOTALL).match
        ends, new = set[int](), starts
        while (new := {at + 1 for at in new if is_one(text, at)} - ends) and (wild or times == "+" or not ends):
            ends |= new
        none = starts if wild or times == "?" else set[int]()
        starts = none | {at for at in ends if wild != "**/" or text[at - 1] == "/"}
    return len(text) in starts
