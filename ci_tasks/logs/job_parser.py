"""A job's log → RecoveredJob, in one pass and with memory that does not grow with the log.

The runner sets the job up, then announces each step in a group (`job_steps`), then the step's program writes until the
next group, then the runner cleans up. What a program prints is never taken for the runner's messages about the set-up
or the checkout: those come first, and the first message counts. A program can end its own step early in a log without
gh's step column, by printing a step's whole group; so exit codes are taken from the last such line, which is the
runner's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ci_tasks.logs import job_steps
from ci_tasks.logs.job_lines import JOBS_WORDS, JobInLog, JobsInLog, LineForm, LogLine, printable_text
from ci_tasks.logs.job_steps import (
    CANCELLED,
    END,
    FAILURE,
    LOST,
    SUCCESS,
    TIMED_OUT,
    TITLE,
    CheckoutParser,
    Head,
    MachineParser,
    RecoveredJob,
    RecoveredStep,
    SetupParser,
    StepParser,
    begins,
    head_in,
    parse_header,
    pull_request_of,
    with_tag,
)
from ci_tasks.logs.lines import LineReader
from ci_tasks.workflow import shell

AFTER_STEPS = (
    b"Post job cleanup.",
    b"Evaluate and set job outputs",
    b"Cleaning up orphan processes",
    b"Stop and remove container: ",
    b"Print service container logs: ",
    b"A job completed hook has been configured",
)
WORDS = (
    *(re.escape(beginning) for beginning in AFTER_STEPS),
    rb"##\[error\]",
    *job_steps.WORDS,
)
_LAST_MESSAGE = b"Cleaning up orphan processes"
_ERROR = b"##[error]"
_EXIT = re.compile(rb"Process completed with exit code (-?\d{1,10})\.\s*")
_TIMEOUT = re.compile(rb"The action '(.{0,300})' has timed out after (\d{1,6}) minutes\.\s*")
_CANCELLED = b"The operation was canceled."
_LOST = b"The runner has received a shutdown signal"
_HEAD = 1 << 16  # bytes
_MAX_STEPS = 300
_MAX_HEADS = 50
_MAX_HEADER_BYTES = 8 << 20  # bytes of steps' groups; a log that has more of them is not a job's
_WHOLE_SHA = 40


def parse_job(lines: Iterable[LogLine]) -> RecoveredJob:
    """What the log of one job tells. Lines of another job, and what stands around gh's output, are left out."""
    reader = JobLogReader()
    for line in lines:
        reader.take(line)
    reader.end([])
    return reader.job


class JobLogReader(LineReader):
    """Reads from a log which jobs it has lines of, and what it tells of the first: nearly always there is but one.
    Nearly every log shows its form in the lines at its beginning; they are all read, and all of gh's form. Of the
    others those are enough that have one of the words, those after a line with which `needs_next_line` became true, and
    the last with a timestamp."""

    words = b"|".join((*WORDS, *JOBS_WORDS))

    def __init__(self) -> None:
        self._form, self._head = LineForm(), _HEAD
        self._jobs, self._parser = JobsInLog(), JobParser()
        self.jobs: tuple[JobInLog, ...] = ()
        self.job = RecoveredJob()

    def needs_next_line(self) -> bool:
        return self._head > 0 or bool(self._form.columns) or self._parser.needs_next_line()

    def feed(self, number: int, line: bytes, before: bytes) -> bool:
        self._head -= len(line) + 1
        self.take(self._form.text_of(number, line))
        return True

    def take(self, line: LogLine) -> None:
        self._jobs.feed(line)
        if line.job and not self._parser.job:
            self._parser = JobParser(line.job)
        if line.job == self._parser.job:
            self._parser.feed(line)

    def end(self, tail: list[tuple[int, bytes]]) -> None:
        """With the time of the last line that has one."""
        times = [self._form.text_of(number, line).seconds for number, line in tail]
        stamped = [time for time in times if time is not None]
        if stamped and not self._form.columns:
            self._parser.saw_time(stamped[-1])
        self.jobs, self.job = self._jobs.jobs(), self._parser.finish()


class JobParser:
    """What was parsed so far. `job` is gh's column, and `_column` its step, "" where there is none. `is_whole` says
    that the log goes on to the runner's last message. `setup_error` is its first error outside of every step, in gh's
    step `setup_column`. `heads` are the commits that git says HEAD is at, anywhere."""

    def __init__(self, job: str = "") -> None:
        self.job = job
        self.setup, self.machine = SetupParser(), MachineParser()
        self.steps: list[StepParser] = []
        self.started: float | None = None
        self.ended: float | None = None
        self.is_whole = False
        self.setup_error = self.setup_column = ""
        self.heads: dict[str, Head] = {}
        self._column = ""
        self._stamped = False
        self._cleanup = False
        self._title: LogLine | None = None
        self._body: list[tuple[bytes, bool]] | None = None
        self._capacity = _MAX_HEADER_BYTES

    def feed(self, line: LogLine) -> None:
        if line.seconds is not None:
            self.saw_time(line.seconds)
        if line.step != self._column:
            self._next_column(line)
        is_own = line.seconds is not None or not self._stamped  # only such a line can be the runner's message
        if self._title is not None and self._in_group(line, is_own, self._title):
            return
        if is_own and line.text.startswith(TITLE) and self._step_may_begin():
            self._title, self._body = line, None
        else:
            self._feed_line(line, is_own)

    def saw_time(self, seconds: float) -> None:
        self._stamped = True
        self.started = seconds if self.started is None else self.started
        self.ended = seconds

    def needs_next_line(self) -> bool:
        """Whether the next line may tell something without one of WORDS."""
        if self._title is not None:
            return True
        if not self.steps:
            return self.setup.needs_next_line
        is_in_step = not self._cleanup and self._in_last_step()
        return is_in_step and (self.steps[-1].needs_next_line or self.machine.needs_next_line)

    def finish(self) -> RecoveredJob:
        if self._title is not None:
            self._begin_step(self._title, self._body or [])
        return _recovered(self)

    def _next_column(self, line: LogLine) -> None:
        if self._title is not None:
            self._begin_step(self._title, self._body or [])
        self._column = line.step
        self._cleanup = False

    def _step_may_begin(self) -> bool:
        """Where gh names the step, a step has one group of its own; what comes later is a program's."""
        return not self._column or not self._in_last_step()

    def _in_last_step(self) -> bool:
        return bool(self.steps) and self.steps[-1].column == self._column

    def _in_group(self, line: LogLine, is_own: bool, title: LogLine) -> bool:
        """Whether the line belongs to a step's group. A group that turns out to be none is a program's output."""
        if self._body is None:
            if not begins(title.text, line.text, stamped=self._stamped):
                self._title = None
                self._feed_line(title, is_own=True)
                return False
            self._body = []
        if is_own and line.text.startswith(END):
            self._begin_step(title, self._body)
            return True
        self._capacity -= len(line.text) + 64  # a line of a list costs that even where it is empty
        if self._capacity > 0:
            self._body.append((line.text, is_own))
        else:
            self._title = None
        return True

    def _begin_step(self, title: LogLine, body: list[tuple[bytes, bool]]) -> None:
        self._title, self._cleanup = None, False
        steps = self.steps
        if len(steps) < _MAX_STEPS:
            early = not any(step.announced.script for step in steps)
            steps.append(StepParser(*parse_header(title, body), column=title.step, early=early))

    def _feed_line(self, line: LogLine, is_own: bool) -> None:
        """A line outside of a step's group: the runner's or, once steps have begun, mostly the program's."""
        text, steps = line.text, self.steps
        if text.startswith(b"HEAD is now at ") and len(self.heads) < _MAX_HEADS and (head := head_in(text)):
            self.heads.setdefault(head.commit, head)
        if is_own and text.startswith(AFTER_STEPS):
            self.is_whole = self.is_whole or text.startswith(_LAST_MESSAGE)
            self._cleanup = bool(steps)
        elif is_own and text.startswith(_ERROR):
            self._error(text.removeprefix(_ERROR), line)
        elif not steps:
            self.setup.feed(text)
        elif not self._cleanup and self._in_last_step():
            steps[-1].feed(text)
            self.machine.feed(text)

    def _error(self, text: bytes, line: LogLine) -> None:
        if not self.steps:
            self.setup_error = self.setup_error or printable_text(text, 300)
            self.setup_column = self.setup_column or line.step
        elif self._in_last_step():
            _record_error(self.steps[-1], text)


def _record_error(step: StepParser, text: bytes) -> None:
    """An error of a step: how it ended, or one on the way."""
    if match := _EXIT.fullmatch(text):
        step.fail(FAILURE, text, exit_code=int(match[1]))
    elif match := _TIMEOUT.fullmatch(text):
        step.fail(TIMED_OUT, text, minutes=int(match[2]), name=printable_text(match[1]))
    elif text.startswith(_LOST):
        step.fail(LOST, text)
    elif text.startswith(_CANCELLED) and step.outcome != LOST:  # a runner that goes away cancels as well
        step.fail(CANCELLED, text)
    elif not step.outcome:
        step.error = printable_text(text, 300)


def _recovered(state: JobParser) -> RecoveredJob:
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
        merge_head=checkout.head.merge_head,
        merge_base=checkout.head.merge_base,
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


def _fail_last_action(state: JobParser) -> None:
    """An action has no exit code: if the last step is one and showed an error, and nothing else failed, it failed."""
    if not state.steps or any(step.failed for step in state.steps):
        return
    last = state.steps[-1]
    if last.announced.uses and last.error:
        last.outcome, last.has_later_output = FAILURE, False


def _checkout(steps: Iterable[StepParser]) -> CheckoutParser:
    """The checkout of the code under test: the first that goes to the workspace itself, else the first. One that was
    announced after a script ran counts only where there was none before: it may be that script's own output."""
    checkouts = [(step.early, step.checkout) for step in steps if step.checkout]
    trusted = [checkout for early, checkout in checkouts if early] or [checkout for _, checkout in checkouts[:1]]
    return next(
        (checkout for checkout in trusted if not checkout.has_own_path), trusted[0] if trusted else CheckoutParser({})
    )


def _failed_setup(state: JobParser) -> str:
    if not state.setup_error:
        return ""
    return state.setup_column or ("Initialize containers" if state.setup.containers else "Set up job")


def _conclusion(state: JobParser, failed: list[RecoveredStep]) -> str:
    if failed:
        return CANCELLED if failed[0].outcome == CANCELLED else FAILURE
    if state.setup_error:
        return FAILURE
    # An action that failed shows an error and no more, and so does one that only complains.
    without_error = not any(step.error for step in state.steps)
    return SUCCESS if state.is_whole and "job_name" in state.setup.values and state.steps and without_error else ""


def _with_image(job: RecoveredJob, state: JobParser) -> RecoveredJob:
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


def missing_facts(job: RecoveredJob, *, is_whole: bool) -> tuple[str, ...]:
    """One sentence for each thing that was not in the log. `is_whole`: the log goes on to the runner's last message."""
    heads = ", ".join(head.commit[:12] for head in job.heads[:5])
    masked = ", ".join(dict.fromkeys(name for step in job.steps for name in step.masked))
    scripts = " ".join(step.script for step in job.steps)
    wants_gpu = "--gpus" in scripts or "gpu_lock_exec" in scripts
    failed = [step for step in job.steps if step.outcome]
    names = ", ".join(step.name for step in failed)
    no_exit = job.exit_code is None and job.conclusion not in (SUCCESS, CANCELLED)
    ended = f" ({failed[0].outcome})" if failed else ""
    facts = (
        (not job.repository, "the repository: no checkout is in the log"),
        (
            not job.commit and heads,
            f"the commit: no checkout step names it; git says that HEAD is at {heads}, which may be other code",
        ),
        (
            not job.commit and not heads,
            "the commit: no `git log -1` and no `HEAD is now at` is in the log, so which code ran is not known",
        ),
        (
            0 < len(job.commit) < _WHOLE_SHA,
            f"the whole commit: the log has only {job.commit}, which must be looked up in the repository",
        ),
        (
            job.commit and not job.ref,
            "the ref: the checkout does not name it, so whether this was a pull request is not known",
        ),
        (
            job.pull_request and not job.merge_head,
            "the merge's parents: the checkout has no `Merge A into B`, and GitHub drops the merge commit once the "
            "pull request moves on",
        ),
        (
            not job.job_name,
            "the job's name: no `Complete job name:` is in the log, so only the scripts tell which row it was",
        ),
        (not job.runner_name, "the runner: the log has no set-up, so which machine ran the job is not known"),
        (not job.steps, "the steps: the log has no `Run` group, so no script and no environment is known"),
        (masked, f"the values of {masked}: GitHub shows secrets as ***, so yours are used"),
        (
            not job.image and "docker" in scripts,
            "the image: the script names docker, and no `docker run` could be read from it",
        ),
        ("$" in job.image, f"the image: the script calls it {job.image}, which only the shell knew"),
        (
            job.image and not job.digest,
            f"the image's digest: no pull of {job.image} is in the log, so its tag may have moved since",
        ),
        (wants_gpu and not job.gpu_models, "the GPU model: the job did not print nvidia-smi's table"),
        (wants_gpu and not job.driver, "the driver's version: the job did not print nvidia-smi's table"),
        (
            not job.packages,
            "the packages: the job printed none, so they are what image and install steps gave that day",
        ),
        (
            len(failed) > 1,
            f"which step failed the job: {names} all ended badly; the first is meant, unless it may fail",
        ),
        (job.started is None, "the times: the log has no timestamps"),
        (not is_whole, "the log's end: the runner's last message is not in it, so it is only a part"),
        (no_exit, f"the exit code: no step ended with `Process completed with exit code`{ended}"),
    )
    return tuple(sentence for is_missing, sentence in facts if is_missing)
