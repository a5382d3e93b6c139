"""What a log does not tell, as sentences: what, and what that means for running the job again."""

from __future__ import annotations

from collections.abc import Iterator

from ci_tasks.features.ci_logs.parse.recovered_job import CANCELLED, SUCCESS, RecoveredJob

_WHOLE_SHA = 40


def missing_facts(job: RecoveredJob, *, is_whole: bool) -> tuple[str, ...]:
    """One sentence for each thing that was not in the log. `is_whole`: the log goes on to the runner's last message."""
    return (
        *_code(job),
        *_job(job, is_whole),
        *_image(job),
        *_machine(job),
        *_ending(job, is_whole),
    )


def _code(job: RecoveredJob) -> Iterator[str]:
    if not job.repository:
        yield "the repository: no checkout is in the log"
    if not job.commit and job.heads:
        heads = ", ".join(head.commit[:12] for head in job.heads[:5])
        yield f"the commit: no checkout step names it; git says that HEAD is at {heads}, which may be other code"
    elif not job.commit:
        yield "the commit: no `git log -1` and no `HEAD is now at` is in the log, so which code ran is not known"
    elif len(job.commit) < _WHOLE_SHA:
        yield f"the whole commit: the log has only {job.commit}, which must be looked up in the repository"
    if job.commit and not job.ref:
        yield "the ref: the checkout does not name it, so whether this was a pull request is not known"
    if job.pull_request and not job.merge_head:
        yield (
            "the merge's parents: the checkout has no `Merge A into B`, and GitHub drops the merge commit once the "
            "pull request moves on"
        )


def _job(job: RecoveredJob, is_whole: bool) -> Iterator[str]:
    if not job.job_name:
        yield "the job's name: no `Complete job name:` is in the log, so only the scripts tell which row it was"
    if not job.runner_name:
        yield "the runner: the log has no set-up, so which machine ran the job is not known"
    if not job.steps:
        yield "the steps: the log has no `Run` group, so no script and no environment is known"
    masked = dict.fromkeys(name for step in job.steps for name in step.masked)
    if masked:
        yield f"the values of {', '.join(masked)}: GitHub shows secrets as ***, so yours are used"


def _image(job: RecoveredJob) -> Iterator[str]:
    if not job.image:
        if any("docker" in step.script for step in job.steps):
            yield "the image: the script names docker, and no `docker run` could be read from it"
        return
    if "$" in job.image:
        yield f"the image: the script calls it {job.image}, which only the shell knew"
    if not job.digest:
        yield f"the image's digest: no pull of {job.image} is in the log, so its tag may have moved since"


def _machine(job: RecoveredJob) -> Iterator[str]:
    scripts = " ".join(step.script for step in job.steps)
    if "--gpus" in scripts or "gpu_lock_exec" in scripts:
        if not job.gpu_models:
            yield "the GPU model: the job did not print nvidia-smi's table"
        if not job.driver:
            yield "the driver's version: the job did not print nvidia-smi's table"
    if not job.packages:
        yield "the packages: the job printed none, so they are what image and install steps gave that day"


def _ending(job: RecoveredJob, is_whole: bool) -> Iterator[str]:
    failed = [step for step in job.steps if step.outcome]
    if len(failed) > 1:
        names = ", ".join(step.name for step in failed)
        yield f"which step failed the job: {names} all ended badly; the first is meant, unless it may fail"
    if job.started is None:
        yield "the times: the log has no timestamps"
    if not is_whole:
        yield "the log's end: the runner's last message is not in it, so it is only a part"
    if job.exit_code is None and job.conclusion not in (SUCCESS, CANCELLED):
        ended = f" ({failed[0].outcome})" if failed else ""
        yield f"the exit code: no step ended with `Process completed with exit code`{ended}"
