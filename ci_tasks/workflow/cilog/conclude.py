"""What was heard in a log → Recovered: which step failed, which image ran, and what nobody said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ci_tasks.runner.docker.docker_argv import render
from ci_tasks.workflow import shell
from ci_tasks.workflow.cilog.checkout import Checkout, pull_request_of
from ci_tasks.workflow.cilog.images import whole_name
from ci_tasks.workflow.cilog.machine import Machine
from ci_tasks.workflow.cilog.missing import missing
from ci_tasks.workflow.cilog.recovered import CANCELLED, FAILURE, SUCCESS, CiStep, Recovered
from ci_tasks.workflow.cilog.setup import SetUp
from ci_tasks.workflow.cilog.step import StepReader


@dataclass
class Heard:
    """A log's words, by speaker. `job` is gh's column, `whole` that the runner's last words were among them,
    `setup_error` its first error outside of every step, in gh's step `setup_column`."""

    job: str = ""
    setup: SetUp = field(default_factory=SetUp)
    machine: Machine = field(default_factory=Machine)
    steps: list[StepReader] = field(default_factory=list)
    started: float | None = None
    ended: float | None = None
    whole: bool = False
    setup_error: str = ""
    setup_column: str = ""


def conclude(heard: Heard) -> Recovered:
    """Everything that can be said, and what cannot."""
    if heard.steps:
        heard.steps[-1].end(heard.ended)
    _settle_action(heard)
    steps = tuple(step.record() for step in heard.steps)
    bad = [step for step in steps if step.outcome]
    checkout = _checkout(heard.steps)
    repository, workflow, ref = heard.setup.defined_at
    found = Recovered(
        repository=checkout.repository or repository,
        job_name=heard.setup.said.get("job_name") or heard.job,
        workflow=workflow,
        runner_name=heard.setup.runner_name,
        runner_version=heard.setup.said.get("runner_version", ""),
        runner_image=heard.setup.runner_image,
        commit=checkout.commit,
        ref=checkout.ref or ref,
        pull_request=pull_request_of(checkout.ref or ref),
        merge_head=checkout.merge_head,
        merge_base=checkout.merge_base,
        workspace=checkout.workspace,
        steps=steps,
        failed_step=bad[0].name if bad else _failed_setup(heard),
        exit_code=bad[0].exit_code if bad else None,
        conclusion=_conclusion(heard, bad),
        started=heard.started,
        ended=heard.ended,
        gpu_ids=heard.machine.gpu_ids,
        gpu_models=tuple(model for _, model in sorted(heard.machine.models.items())),
        driver=heard.machine.driver,
        packages=dict(heard.machine.packages),
    )
    found = _with_image(found, heard)
    return replace(found, missing=missing(found, whole=heard.whole))


def _settle_action(heard: Heard) -> None:
    """An action has no exit code: if the last step is one and showed an error, and nothing else failed, it failed."""
    if not heard.steps or any(step.failed for step in heard.steps):
        return
    last = heard.steps[-1]
    if last.head.uses and last.error:
        last.outcome, last.went_on = FAILURE, False


def _checkout(steps: Iterable[StepReader]) -> Checkout:
    """The checkout of the code under test: the first that goes to the workspace itself, else the first. One that was
    announced after a script ran counts only where there was none before: it may be that script's own words."""
    found = [(step.early, step.checkout) for step in steps if step.checkout]
    trusted = [checkout for early, checkout in found if early] or [checkout for _, checkout in found[:1]]
    return next((one for one in trusted if not one.aside), trusted[0] if trusted else Checkout({}))


def _failed_setup(heard: Heard) -> str:
    if not heard.setup_error:
        return ""
    return heard.setup_column or ("Initialize containers" if heard.setup.containers else "Set up job")


def _conclusion(heard: Heard, bad: list[CiStep]) -> str:
    if bad:
        return CANCELLED if bad[0].outcome == CANCELLED else FAILURE
    if heard.setup_error:
        return FAILURE
    # An action that failed shows an error and no more, and so does one that only complains.
    silent = not any(step.error for step in heard.steps)
    return SUCCESS if heard.whole and "job_name" in heard.setup.said and heard.steps and silent else ""


def _with_image(found: Recovered, heard: Heard) -> Recovered:
    """The job's container, else that of the first `docker run` in a script, with the digest that its pull showed."""
    pulled: dict[str, str] = {}
    for pulls in (heard.setup.pulls, *(step.pulls for step in heard.steps if step.pulls)):
        pulled = {**pulls.digests, **pulled}
    image, argv = heard.setup.image, heard.setup.docker_argv
    for step in found.steps:
        run = shell.docker_run(step.script, step.env) if not image and "docker" in step.script else None
        if run:
            image, argv = run.image, ("docker", *render(run))
    if not image:
        return found
    pinned = image.partition("@")[2]
    digest = pinned if pinned.startswith("sha256:") else pulled.get(whole_name(image), "")
    return replace(found, image=image, digest=digest, docker_argv=argv)
