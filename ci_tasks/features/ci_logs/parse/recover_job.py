"""What was parsed from a log → RecoveredJob: which step failed, which image ran, and what is not in the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.ci_logs.parse.checkout_parser import CheckoutParser, pull_request_of
from ci_tasks.features.ci_logs.parse.image_pulls import with_tag
from ci_tasks.features.ci_logs.parse.machine_parser import MachineParser
from ci_tasks.features.ci_logs.parse.missing_facts import missing_facts
from ci_tasks.features.ci_logs.parse.recovered_job import (
    CANCELLED,
    FAILURE,
    SUCCESS,
    Head,
    RecoveredJob,
    RecoveredStep,
)
from ci_tasks.features.ci_logs.parse.setup_parser import SetupParser
from ci_tasks.features.ci_logs.parse.step_parser import StepParser
from ci_tasks.workflow import shell


@dataclass
class JobState:
    """What was parsed so far. `job` is gh's column. `is_whole` says that the log goes on to the runner's last message.
    `setup_error` is its first error outside of every step, in gh's step `setup_column`. `heads` are the
    commits that git says HEAD is at, anywhere."""

    job: str = ""
    setup: SetupParser = field(default_factory=SetupParser)
    machine: MachineParser = field(default_factory=MachineParser)
    steps: list[StepParser] = field(default_factory=list)
    started: float | None = None
    ended: float | None = None
    is_whole: bool = False
    setup_error: str = ""
    setup_column: str = ""
    heads: dict[str, Head] = field(default_factory=dict)


def recover_job(state: JobState) -> RecoveredJob:
    _fail_last_action(state)
    steps = tuple(step.record() for step in state.steps)
    failed = [step for step in steps if step.outcome]
    checkout = _checkout(state.steps)
    repository, workflow, ref = state.setup.defined_at
    job = RecoveredJob(
        repository=checkout.repository or repository,
        job_name=state.setup.values.get("job_name") or state.job,
        workflow=workflow,
        runner_name=state.setup.runner_name,
        commit=checkout.commit,
        ref=checkout.ref or ref,
        pull_request=pull_request_of(checkout.ref or ref),
        merge_head=checkout.merge_head,
        merge_base=checkout.merge_base,
        workspace=checkout.workspace,
        steps=steps,
        failed_step=failed[0].name if failed else _failed_setup(state),
        exit_code=failed[0].exit_code if failed else None,
        conclusion=_conclusion(state, failed),
        started=state.started,
        ended=state.ended,
        gpu_models=tuple(model for _, model in sorted(state.machine.models.items())),
        driver=state.machine.driver,
        packages=dict(state.machine.packages),
        heads=() if checkout.commit else tuple(state.heads.values()),
    )
    job = _with_image(job, state)
    return replace(job, missing=missing_facts(job, is_whole=state.is_whole))


def _fail_last_action(state: JobState) -> None:
    """An action has no exit code: if the last step is one and showed an error, and nothing else failed, it failed."""
    if not state.steps or any(step.failed for step in state.steps):
        return
    last = state.steps[-1]
    if last.header.uses and last.error:
        last.outcome, last.has_later_output = FAILURE, False


def _checkout(steps: Iterable[StepParser]) -> CheckoutParser:
    """The checkout of the code under test: the first that goes to the workspace itself, else the first. One that was
    announced after a script ran counts only where there was none before: it may be that script's own output."""
    checkouts = [(step.early, step.checkout) for step in steps if step.checkout]
    trusted = [checkout for early, checkout in checkouts if early] or [checkout for _, checkout in checkouts[:1]]
    return next(
        (checkout for checkout in trusted if not checkout.has_own_path), trusted[0] if trusted else CheckoutParser({})
    )


def _failed_setup(state: JobState) -> str:
    if not state.setup_error:
        return ""
    return state.setup_column or ("Initialize containers" if state.setup.containers else "Set up job")


def _conclusion(state: JobState, failed: list[RecoveredStep]) -> str:
    if failed:
        return CANCELLED if failed[0].outcome == CANCELLED else FAILURE
    if state.setup_error:
        return FAILURE
    # An action that failed shows an error and no more, and so does one that only complains.
    without_error = not any(step.error for step in state.steps)
    return SUCCESS if state.is_whole and "job_name" in state.setup.values and state.steps and without_error else ""


def _with_image(job: RecoveredJob, state: JobState) -> RecoveredJob:
    """The job's container, else that of the first `docker run` in a script, with the digest that its pull showed."""
    pulled: dict[str, str] = {}
    for pulls in (state.setup.pulls, *(step.pulls for step in state.steps if step.pulls)):
        pulled = {**pulls.digests, **pulled}
    image = state.setup.image
    for step in job.steps:
        run = shell.docker_run(step.script, step.env) if not image and "docker" in step.script else None
        if run:
            image = run.image
    if not image:
        return job
    pinned = image.partition("@")[2]
    digest = pinned if pinned.startswith("sha256:") else pulled.get(with_tag(image), "")
    return replace(job, image=image, digest=digest)
