"""The plan of a retry: that of a failed run, from the failed step on, in the workspace and containers that it kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ci_tasks.agent.records import Checkout, Deviation, Event, Plan, Retry
from ci_tasks.planning.container_rules import rules_of_run
from ci_tasks.planning.deviations import CODE, CONVERTED, code_deviations
from ci_tasks.planning.script import retried

RETRIED = "retried"


def failed_step(plan: Plan, events: Sequence[Event]) -> int:
    """The step that failed, or the last that began, counted from 1 among those that ran."""
    number = plan.retry.step - 1 if plan.retry else 0
    for event in events:
        if event.event == "step failed":
            break
        number += event.event == "step"
    return max(number, plan.retry.step if plan.retry else 1)


def retry_plan(before: Plan, *, id: str, run_dir: str, earlier_dir: str, step: int, checkout: Checkout) -> Plan:
    """The plan of the run `id` in `run_dir`, which goes on from `before`, whose script it has, in `earlier_dir`."""
    directories = (*(before.retry.directories if before.retry else ()), earlier_dir)
    commits = before.checkout.commit, checkout.commit
    rules = rules_of_run(before.container, id, run_dir) if before.container else None
    venv = f"{directories[0]}/tmp/venv"
    if rules and before.has_container_daemon and venv in before.script:  # a job's container sees only what is mounted
        rules = replace(rules, volumes=(*rules.volumes, venv))
    here, why = f"steps {step}.. of run {before.id}", "in its kept workspace; earlier steps were not run again"
    said = Deviation(RETRIED, "all steps", here, why)
    others = (deviation for deviation in before.deviations if deviation.what not in (CODE, CONVERTED, RETRIED))
    return replace(
        before,
        id=id,
        checkout=checkout,
        script=retried(before.script, step, commits, directories),
        container=rules,
        keep=True,
        retry_of=before.id,
        retry=Retry(directories, step, before.checkout.commit, before.checkout.flat or before.checkout.tree),
        deviations=(*code_deviations(checkout), *others, said),
    )
