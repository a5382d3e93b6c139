"""What a job's log tells of the job, and in words what it does not tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass

# How a step ended, where the log says so.
FAILURE, CANCELLED, TIMED_OUT, LOST = "failure", "cancelled", "timed out", "runner lost"
SUCCESS = "success"
_WHOLE_SHA = 40


@dataclass(frozen=True)
class RecoveredStep:
    """A step as the runner announces it, secrets shown as `***`.

    `name` is gh's, else GitHub's default ("Run " and the script's first line); `line` the 1-based line of the log where
    it begins; `uses` the action, or "" for a script. `masked` are the variables with a secret in them; `minutes` is the
    limit that it ran into. `outcome` is "" where the log does not say that the step ended badly; `error` is the last
    error that the runner showed.
    """

    name: str
    line: int
    uses: str = ""
    script: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    masked: tuple[str, ...] = ()
    outcome: str = ""
    exit_code: int | None = None
    minutes: int | None = None
    error: str = ""


@dataclass(frozen=True)
class RecoveredJob:
    """Everything that was recovered; all text is safe for a terminal. "" and None mean: not in the log.

    `commit` has 40 digits, or fewer where the log shows no more; of a pull request it is the merge commit, and
    `merge_head` and `merge_base` are its parents. `image` is as CI names it, `digest` is "sha256:…". `workspace` is
    where CI checked out. `runner_image` is GitHub's image of the machine and its version, `python` CI's version of it.
    `started` and `ended` are in seconds since the epoch. `conclusion` is success, failure, cancelled or "". `missing`
    has one sentence for each fact that is not in the log.
    """

    repository: str = ""
    job_name: str = ""
    workflow: str = ""
    runner_name: str = ""
    runner_image: str = ""
    commit: str = ""
    ref: str = ""
    pull_request: int | None = None
    merge_head: str = ""
    merge_base: str = ""
    workspace: str = ""
    image: str = ""
    digest: str = ""
    steps: tuple[RecoveredStep, ...] = ()
    failed_step: str = ""
    exit_code: int | None = None
    conclusion: str = ""
    started: float | None = None
    ended: float | None = None
    gpu_models: tuple[str, ...] = ()
    driver: str = ""
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def scripts(self) -> tuple[RecoveredStep, ...]:
        return tuple(step for step in self.steps if not step.uses)


FAILED_STEPS_ONLY = "set-up, checkout and image: `--log-failed` prints failed steps alone; `gh run view --log` has all"


def missing_facts(job: RecoveredJob, *, is_whole: bool, has_set_up: bool, has_columns: bool) -> tuple[str, ...]:
    """One sentence for each thing that was not in the log. `is_whole`: the log goes on to the runner's last message,
    `has_set_up`: it begins with the runner's first; `has_columns`: it is of `gh run view`."""
    if has_columns and not has_set_up:
        return (FAILED_STEPS_ONLY,)
    masked = ", ".join(dict.fromkeys(name for step in job.steps for name in step.masked))
    scripts = " ".join(step.script for step in job.steps)
    wants_gpu = "--gpus" in scripts or "gpu_lock_exec" in scripts
    ended_badly = [step.name for step in job.steps if step.outcome]
    facts = {
        "the repository: no checkout is in the log": not job.repository,
        "the commit: no checkout step names it": not job.commit,
        f"the whole commit: the log has only {job.commit}": 0 < len(job.commit) < _WHOLE_SHA,
        "the ref: whether this was a pull request is not known": bool(job.commit and not job.ref),
        "the merge's parents: GitHub drops a merge commit once its pull request moves on": bool(
            job.pull_request and not job.merge_head
        ),
        "the job's name: only the scripts tell which row it was": not job.job_name,
        "the steps: the log has no `Run` group, so no script and no environment is known": not job.steps,
        f"the values of {masked}: GitHub shows secrets as ***, so yours are used": bool(masked),
        "the image: no `docker run` could be read from the script": "docker" in scripts and not job.image,
        f"the image: the script calls it {job.image}, which only the shell knew": "$" in job.image,
        f"the image's digest: no pull of {job.image} is in the log, so its tag may have moved since": bool(
            job.image and not job.digest
        ),
        "the GPU model and driver: the job did not print nvidia-smi's table": wants_gpu and not job.gpu_models,
        "the packages: the job printed none": not job.packages,
        f"which step failed the job: {', '.join(ended_badly)} all ended badly; the first is meant": len(ended_badly)
        > 1,
        "the log's end: the runner's last message is not in it, so it is only a part": not is_whole,
        "the exit code: no step ended with `Process completed with exit code`": (
            job.exit_code is None and job.conclusion not in (SUCCESS, CANCELLED)
        ),
    }
    return tuple(sentence for sentence, is_missing in facts.items() if is_missing)
