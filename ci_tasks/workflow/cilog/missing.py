"""What a log does not tell, in words: what, and what that means for who wants to run the job again."""

from __future__ import annotations

from collections.abc import Iterator

from ci_tasks.workflow.cilog.recovered import CANCELLED, SUCCESS, Recovered

_WHOLE_SHA = 40


def missing(found: Recovered, *, whole: bool) -> tuple[str, ...]:
    """One sentence for each thing that was looked for in vain. `whole`: the log goes on to the runner's last words."""
    return (
        *_code(found),
        *_job(found, whole),
        *_image(found),
        *_machine(found),
        *_ending(found, whole),
    )


def _code(found: Recovered) -> Iterator[str]:
    if not found.repository:
        yield "the repository: no checkout is in the log"
    if not found.commit:
        yield "the commit: no `git log -1` and no `HEAD is now at` is in the log, so which code ran is not known"
    elif len(found.commit) < _WHOLE_SHA:
        yield f"the whole commit: the log has only {found.commit}, which must be looked up in the repository"
    if found.commit and not found.ref:
        yield "the ref: the checkout does not name it, so whether this was a pull request is not known"
    if found.pull_request and not found.merge_head:
        yield (
            "the merge's parents: the checkout has no `Merge A into B`, and GitHub drops the merge commit once the "
            "pull request moves on"
        )


def _job(found: Recovered, whole: bool) -> Iterator[str]:
    if not found.job_name:
        yield "the job's name: no `Complete job name:` is in the log, so only the scripts tell which row it was"
    if not found.runner_name and not found.runner_image:
        yield "the runner: the log has no set-up, so which machine ran the job is not known"
    if not found.steps:
        yield "the steps: the log has no `Run` group, so no script and no environment is known"
    masked = dict.fromkeys(name for step in found.steps for name in step.masked)
    if masked:
        yield f"the values of {', '.join(masked)}: GitHub shows secrets as ***, so yours are used"


def _image(found: Recovered) -> Iterator[str]:
    if not found.image:
        if any("docker" in step.script for step in found.steps):
            yield "the image: the script names docker, and no `docker run` could be read from it"
        return
    if "$" in found.image:
        yield f"the image: the script calls it {found.image}, which only the shell knew"
    if not found.digest:
        yield f"the image's digest: no pull of {found.image} is in the log, so its tag may have moved since"


def _machine(found: Recovered) -> Iterator[str]:
    scripts = " ".join(step.script for step in found.steps) + " ".join(found.docker_argv)
    if "gpu_lock_exec" in scripts and not found.gpu_ids:
        yield "which GPUs: no `Acquired GPUs:` is in the log, so the job may have ended before it had them"
    if "--gpus" in scripts or "gpu_lock_exec" in scripts or found.gpu_ids:
        if not found.gpu_models:
            yield "the GPU model: the job did not print nvidia-smi's table"
        if not found.driver:
            yield "the driver's version: the job did not print nvidia-smi's table"
    if not found.packages:
        yield "the packages: the job printed none, so they are what image and install steps gave that day"


def _ending(found: Recovered, whole: bool) -> Iterator[str]:
    bad = [step for step in found.steps if step.outcome]
    if len(bad) > 1:
        names = ", ".join(step.name for step in bad)
        yield f"which step failed the job: {names} all ended badly; the first is meant, unless it may fail"
    if found.started is None:
        yield "the times: the log has no timestamps"
    if not whole:
        yield "the log's end: the runner's last words are not there, so the log is a part of one"
    if found.exit_code is None and found.conclusion not in (SUCCESS, CANCELLED):
        ended = f" ({bad[0].outcome})" if bad else ""
        yield f"the exit code: no step ended with `Process completed with exit code`{ended}"
