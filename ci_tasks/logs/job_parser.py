"""A job's log → RecoveredJob, in one pass and with memory that does not grow with the log.

The runner sets the job up, then announces each step in a group, then the step's program writes until the next group,
then the runner cleans up. The group has the step's script, inputs and environment:

    ##[group]Run docker run \\\\                  ##[group]Run actions/checkout@v4
    (cyan)docker run \\\\                         with:
    (cyan)  image:latest                         repository: owner/name
    shell: /usr/bin/bash -e {0}                 env:
    env:                                          NAME: value
      NAME: value                              ##[endgroup]
    ##[endgroup]

A test may print such a group too, and many programs print groups whose title begins with Run. So the line below the
title has to be one that the runner writes there, and a program can end its own step early only in a log without gh's
step column. Exit codes are taken from the last such line, which is the runner's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ci_tasks.errors import printable
from ci_tasks.logs import job_facts as facts
from ci_tasks.logs.job_lines import CYAN, LAST_MESSAGE, RUNNER, SHUTDOWN, LineForm, LogLine, LogPart, PartOfLine
from ci_tasks.logs.lines import LineReader, visible
from ci_tasks.workflow import shell

AFTER_STEPS = (
    b"Post job cleanup.", b"Evaluate and set job outputs", LAST_MESSAGE, b"Stop and remove container: ",
    b"Print service container logs: ", b"A job completed hook has been configured",
)  # fmt: skip
FAILED_STEPS_ONLY = "set-up, checkout and image: `--log-failed` prints failed steps alone; `gh run view --log` has all"
_ERROR = re.compile(rb"(?:\x1b\[[\d;]*m)*##\[error\]")
_EXIT = re.compile(rb"Process completed with exit code (-?\d{1,10})\.\s*")
_TIMEOUT = re.compile(rb"The action '(.{0,300})' has timed out after (\d{1,6}) minutes\.\s*")
_HEAD = 1 << 16  # bytes at the beginning that are all read: nearly every log shows its form there
_MAX_STEPS, _MAX_PARTS = 300, 1000
MAX_HEADER_BYTES = 8 << 20  # bytes of steps' groups; logs that have more of them are not of jobs
_TITLE, _END = b"##[group]Run ", b"##[endgroup]"
_RESET = b"\x1b[0m"
_ACTION = re.compile(r"(?:[\w.-]+/[\w./-]+@|\./|\.github/|docker://)\S*")
_SECTIONS = (b"with:", b"env:")
_SETTING = re.compile(r"  ([^\s:][^:]{0,200}):(?: (.*))?", re.DOTALL)
_MASK = "***"
_WHOLE_SHA = 40
_PULL = re.compile(r"refs/pull/(\d{1,9})/\w+")


class JobLogReader(LineReader):
    """Reads from a log which jobs and attempts it has lines of, and what it tells of each. The lines at its beginning
    are all read, and all of gh's form. Of the others those are enough that have one of the words, those after a line
    with which `needs_next_line` became true, and the last with a timestamp. `failed` are the parts in which a step
    failed, timed out or was cancelled, or an action, or what GitHub does before the first step. `room` are the bytes
    left for steps' groups, for several logs together."""

    words = b"|".join(
        [
            *(re.escape(beginning) for beginning in (*AFTER_STEPS, RUNNER)),
            *(rb"##\[error\]", rb"##\[(?:end)?group\]"),
            *facts.WORDS,
        ]
    )

    def __init__(self, room: list[int] | None = None) -> None:
        self._form, self._head, self._part_of = LineForm(), _HEAD, PartOfLine()
        self._parsers: dict[LogPart, _JobParser] = {}
        self._last: _JobParser | None = None
        self._room = [MAX_HEADER_BYTES] if room is None else room
        self.failed: set[LogPart] = set()
        self.jobs: dict[LogPart, facts.RecoveredJob] = {}

    @property
    def has_one_part(self) -> bool:
        return len(self._parsers) == 1

    def needs_next_line(self) -> bool:
        is_open = self._last is not None and self._last.needs_next_line()
        return self._head > 0 or bool(self._form.columns) or is_open

    def feed(self, number: int, line: bytes, before: bytes) -> bool:
        self._head -= len(line) + 1
        self.take(self._form.text_of(number, line))
        return True

    def take(self, line: LogLine) -> None:
        part = self._part_of.of(line)
        if part not in self._parsers and len(self._parsers) < _MAX_PARTS:
            self._parsers[part] = _JobParser(line.job, self._room)
        if parser := self._parsers.get(part):
            parser.feed(line)
            self._last = parser

    def end(self, tail: list[tuple[int, bytes]]) -> None:
        """With the time of the last line that has one. If gh names jobs, lines without a name were around the log when
        it was copied."""
        times = [self._form.text_of(number, line).seconds for number, line in tail]
        stamped = [time for time in times if time is not None]
        if stamped and self._last is not None and not self._form.columns:
            self._last.saw_time(stamped[-1])
        if not self._parsers:
            self._parsers[LogPart("", 0)] = _JobParser("", self._room)
        has_names = any(part.job for part in self._parsers)
        kept = {part: parser for part, parser in self._parsers.items() if part.job or not has_names}
        self.jobs = {part: parser.recovered() for part, parser in kept.items()}
        failed = (part for part, job in self.jobs.items() if job.conclusion == facts.FAILURE)
        self.failed = {*failed, *(part for part, parser in kept.items() if parser.has_failed)}


class _JobParser:
    """What was parsed so far. `job` is gh's column, and `_column` its step, "" if there is none. `_is_whole` says that
    the log reaches the runner's last message. `_setup_error` is its first error outside of every step. `room` are the
    bytes that are left for the groups of all jobs of the log."""

    def __init__(self, job: str, room: list[int]) -> None:
        self._job, self._room = job, room
        self._setup, self._machine, self._pulls = facts.SetUpFacts(), facts.MachineFacts(), facts.PullFacts()
        self._steps: list[_Step] = []
        self._started: float | None = None
        self._ended: float | None = None
        self._is_whole = self._has_set_up = self._is_cleaning_up = self.has_failed = False
        self._setup_error = self._column = ""
        self._title: LogLine | None = None
        self._body: list[tuple[bytes, bool]] | None = None

    def feed(self, line: LogLine) -> None:
        if line.seconds is not None:
            self.saw_time(line.seconds)
        if line.step != self._column:
            self._end_group()
            self._column, self._is_cleaning_up = line.step, False
        is_own = line.seconds is not None or self._started is None  # only such a line can be the runner's message
        if self._title is not None and self._in_group(line, is_own, self._title):
            return
        # Where gh names the step, a step has one group of its own; what comes later is a program's.
        if is_own and line.text.startswith(_TITLE) and not (self._column and self._in_last_step()):
            self._title, self._body = line, None
        else:
            self._feed_line(line, is_own)

    def saw_time(self, seconds: float) -> None:
        self._started = seconds if self._started is None else self._started
        self._ended = seconds

    def needs_next_line(self) -> bool:
        """Whether the next line may tell something without one of the words."""
        if self._title is not None or self._pulls.needs_next_line:
            return True
        if not self._steps:
            return self._setup.needs_next_line
        return not self._is_cleaning_up and self._in_last_step() and self._steps[-1].needs_next_line

    def _in_last_step(self) -> bool:
        return bool(self._steps) and self._steps[-1].column == self._column

    def _in_group(self, line: LogLine, is_own: bool, title: LogLine) -> bool:
        """Whether the line belongs to a step's group. A group that turns out to be none is a program's output."""
        if self._body is None:
            if not _begins(title.text, line.text, stamped=self._started is not None):
                self._title = None
                self._feed_line(title, is_own=True)
                return False
            self._body = []
        self._room[0] -= len(line.text) + 64  # a line of a list costs that even if it is empty
        if is_own and line.text.startswith(_END):
            self._end_group()
        elif self._room[0] > 0:
            self._body.append((line.text, is_own))
        else:
            self._title = None
        return True

    def _end_group(self) -> None:
        if self._title is None:
            return
        if len(self._steps) < _MAX_STEPS:
            announced, inputs = _parse_header(self._title, self._body or [])
            early = not any(step.announced.script for step in self._steps)
            self._steps.append(_Step(announced, inputs, self._title.step, early))
        self._title, self._is_cleaning_up = None, False

    def _feed_line(self, line: LogLine, is_own: bool) -> None:
        """A line outside of a step's group: the runner's or, once steps have started, mostly the program's."""
        text = line.text
        if is_own and text.startswith(AFTER_STEPS):
            self._is_whole = self._is_whole or text.startswith(LAST_MESSAGE)
            self._is_cleaning_up = bool(self._steps)
        elif is_own and (error := _ERROR.match(text)):
            self._error(text[error.end() :].removesuffix(_RESET))
        elif not self._steps:
            self._has_set_up = self._has_set_up or text.startswith((RUNNER, b"Complete job name: "))
            self._setup.feed(text)
            self._pulls.feed(text)
        elif not self._is_cleaning_up and self._in_last_step():
            self._steps[-1].feed(text)
            self._pulls.feed(text)
            self._machine.feed(text)

    def _error(self, text: bytes) -> None:
        ending = _ending_of(text)
        self.has_failed |= ending is not None and ending.exit_code != 0 and ending.outcome != facts.LOST
        if not self._steps:
            if ending is None or ending.exit_code != 0:
                self._setup_error = self._setup_error or visible(text, 300)
        elif self._in_last_step():
            self._steps[-1].fail(text, ending)

    def recovered(self) -> facts.RecoveredJob:
        self._end_group()
        last = self._steps[-1] if self._steps else None
        # An action has no exit code: the last step failed if it is one and showed an error, and nothing else failed.
        if last and last.announced.uses and last.error and not any(step.failed for step in self._steps):
            last.ending, last.has_later_output = (
                (last.ending or _Ending(facts.FAILURE))._replace(outcome=facts.FAILURE),
                False,
            )
        setup, machine, checkout = self._setup, self._machine, self._checkout()
        steps = tuple(step.record() for step in self._steps)
        failed = next((step for step in steps if step.outcome), None)
        in_setup = "Initialize containers" if setup.has_containers else "Set up job"
        repository, workflow, defined_ref = setup.defined_at
        ref = checkout.ref or defined_ref
        pull = _PULL.fullmatch(ref)
        image, digest = self._image()
        job = facts.RecoveredJob(
            repository=checkout.values["repository"] or repository, job_name=setup.values["job_name"] or self._job,
            workflow=workflow, runner_name=setup.values["runner_name"], runner_image=setup.runner_image,
            commit=checkout.commit, ref=ref, pull_request=int(pull[1]) if pull else None,
            merge_head=checkout.parents[0], merge_base=checkout.parents[1], workspace=checkout.values["workspace"],
            image=image, digest=digest, steps=steps,
            failed_step=failed.name if failed else in_setup if self._setup_error else "",
            exit_code=failed.exit_code if failed else None, conclusion=self._conclusion(failed), started=self._started,
            ended=self._ended, gpu_models=tuple(model for _, model in sorted(machine.models.items())),
            driver=machine.values["driver"], python=machine.values["python"], packages=machine.packages,
        )  # fmt: skip
        missing = _missing_facts(job, is_whole=self._is_whole, has_set_up=self._has_set_up, has_columns=bool(self._job))
        return replace(job, missing=missing)

    def _checkout(self) -> facts.CheckoutFacts:
        """The checkout of the code under test: the first that goes to the workspace itself, else the first. One that
        was announced after a script ran counts only if there was none before: it may be that script's own output."""
        checkouts = [(step.checkout, step.early) for step in self._steps if step.checkout is not None]
        found = [checkout for checkout, early in checkouts if early] or [checkout for checkout, _ in checkouts[:1]]
        return next((one for one in found if not one.has_own_path), found[0] if found else facts.CheckoutFacts({}))

    def _conclusion(self, failed: facts.RecoveredStep | None) -> str:
        if failed is not None:
            return facts.CANCELLED if failed.outcome == facts.CANCELLED else facts.FAILURE
        if self._setup_error:
            return facts.FAILURE
        # An action that failed shows an error and no more, and so does one that only complains.
        without_error = self._steps and not any(step.error for step in self._steps)
        return facts.SUCCESS if self._is_whole and self._setup.values["job_name"] and without_error else ""

    def _image(self) -> tuple[str, str]:
        """The job's container, else the container of the first `docker run` in a script; and the digest of its pull."""
        scripts = [step.announced for step in self._steps if "docker" in step.announced.script]
        runs = (shell.docker_run(step.script, step.env) for step in scripts)
        image = self._setup.container or next((run.image for run in runs if run and run.image), "")
        pinned = image.partition("@")[2]
        return image, pinned if pinned.startswith("sha256:") else self._pulls.digests.get(facts.with_tag(image), "")


class _Ending(NamedTuple):
    """How a step ended badly, by the runner's message. `step` is its name, if the message has it."""

    outcome: str
    exit_code: int | None = None
    minutes: int | None = None
    step: str = ""


def _ending_of(error: bytes) -> _Ending | None:
    if match := _EXIT.fullmatch(error):
        return _Ending(facts.FAILURE, exit_code=int(match[1]))
    if match := _TIMEOUT.fullmatch(error):
        return _Ending(facts.TIMED_OUT, minutes=int(match[2]), step=visible(match[1]))
    starts = {SHUTDOWN: facts.LOST, b"The operation was canceled.": facts.CANCELLED}
    return next((_Ending(outcome) for start, outcome in starts.items() if error.startswith(start)), None)


class _Step:
    """A step while its lines come in. `announced` is it as its group shows it. `column` is gh's name of it, "" if there
    is none; `early` says that no script ran before it, so nothing but the runner can have announced it."""

    def __init__(self, announced: facts.RecoveredStep, inputs: Mapping[str, str], column: str, early: bool) -> None:
        self.announced, self.column, self.early = announced, column, early
        self.ending: _Ending | None = None
        self.error = ""
        self.has_later_output = False  # after the message that says how the step ended
        self.checkout = facts.CheckoutFacts(inputs) if announced.uses.startswith("actions/checkout@") else None

    @property
    def needs_next_line(self) -> bool:
        ended = self.ending is not None and not self.has_later_output
        return ended or (self.checkout is not None and self.checkout.needs_next_line)

    def feed(self, text: bytes) -> None:
        if self.ending and text and not text.startswith(b"##["):
            self.has_later_output = True
        if self.checkout:
            self.checkout.feed(text)

    def fail(self, text: bytes, ending: _Ending | None) -> None:
        """An error of the step: how it ended, or one on the way. The last message about its end is the runner's own,
        but a runner that goes away cancels as well."""
        if ending and self.ending and (ending.outcome, self.ending.outcome) == (facts.CANCELLED, facts.LOST):
            return
        if ending or not self.ending:
            self.error = visible(text, 300)
        if ending:
            self.ending, self.has_later_output = ending, False

    @property
    def failed(self) -> bool:
        return self.ending is not None and not self.has_later_output and self.ending.exit_code != 0

    def record(self) -> facts.RecoveredStep:
        named = self.column or (self.ending.step if self.ending else "") or self.announced.name
        step = replace(self.announced, name=named, error=self.error)
        if self.ending is None or not self.failed:
            return step
        outcome, exit_code, minutes, _ = self.ending
        return replace(step, outcome=outcome, exit_code=exit_code, minutes=minutes)


def _begins(title: bytes, below: bytes, *, stamped: bool) -> bool:
    """Whether a group's title and the line below are the beginning of a step. In a log without timestamps the script
    may have lost its colour, and in our own logs the title is the step's name, so there every `Run` group is one."""
    first = title.removeprefix(_TITLE).strip()
    if not stamped or below.startswith(CYAN) or below.strip() == first:
        return True
    return (below in _SECTIONS or below == _END) and _ACTION.fullmatch(visible(first)) is not None


def _parse_header(title: LogLine, body: Sequence[tuple[bytes, bool]]) -> tuple[facts.RecoveredStep, dict[str, str]]:
    """A step under GitHub's default name, and its inputs, from its group's lines, each with whether it is a line of its
    own (not what a newline in a value made of one)."""
    name = visible(title.text.removeprefix(b"##[group]"))
    count = _script_lines(body)
    sections = _sections(body[count:])
    env = sections.get("env:", {})
    masked = tuple(variable for variable, value in env.items() if _MASK in value)
    if count == 0 and _ACTION.fullmatch(uses := name.removeprefix("Run ")):
        return facts.RecoveredStep(name, title.number, uses, env=env, masked=masked), sections.get("with:", {})
    script = "\n".join(_script_line(line) for line, _ in body[:count])
    return facts.RecoveredStep(name, title.number, script=script, env=env, masked=masked), {}


def _script_line(raw: bytes) -> str:
    """A line of a script as the runner echoes it: without the cyan around it, otherwise as it is but for control
    characters."""
    line = raw.removeprefix(CYAN).removesuffix(_RESET) if raw.startswith(CYAN) else raw
    return printable(line.decode("utf-8", "replace"))


def _script_lines(body: Sequence[tuple[bytes, bool]]) -> int:
    """How many of the group's first lines are the script: the lines in cyan; if the colour is lost, the lines before
    the last `shell:`, since a script may have such a line too."""
    if body and body[0][0].startswith(CYAN):
        return next((at for at, (line, _) in enumerate(body) if not line.startswith(CYAN)), len(body))
    if body and body[0][0] in _SECTIONS:
        return 0
    shells = [at for at, (line, _) in enumerate(body) if line.startswith(b"shell: ")]
    return shells[-1] if shells else len(body)


def _sections(body: Sequence[tuple[bytes, bool]]) -> dict[str, dict[str, str]]:
    """The indented entries below `with:` and `env:`. A value continues in lines that the runner did not begin; if that
    cannot be seen, in lines that are no entry."""
    sections: dict[str, dict[str, str]] = {}
    entries: dict[str, str] = {}
    last = ""
    for raw, own in body:
        if own and raw in _SECTIONS:
            entries, last = sections.setdefault(raw.decode(), {}), ""
            continue
        line = visible(raw, 1 << 20)
        if own and (entry := _SETTING.fullmatch(line)):
            last = entry[1]
            entries[last] = entry[2] or ""
        elif last:
            entries[last] += "\n" + line
    return sections


def _missing_facts(job: facts.RecoveredJob, *, is_whole: bool, has_set_up: bool, has_columns: bool) -> tuple[str, ...]:
    """One sentence for each thing that was not in the log. `is_whole`: the log reaches the runner's last message,
    `has_set_up`: it begins with the runner's first; `has_columns`: it is of `gh run view`."""
    if has_columns and not has_set_up:
        return (FAILED_STEPS_ONLY,)
    masked = ", ".join(dict.fromkeys(name for step in job.steps for name in step.masked))
    scripts = " ".join(step.script for step in job.steps)
    has_no_code = job.exit_code is None and job.conclusion not in (facts.SUCCESS, facts.CANCELLED)
    missing = {
        "the repository: no checkout is in the log": not job.repository,
        "the commit: no checkout step names it": not job.commit,
        f"the full commit: the log has only {job.commit}": 0 < len(job.commit) < _WHOLE_SHA,
        "the ref: unknown whether this was a pull request": job.commit and not job.ref,
        "the merge's parents: GitHub may drop a merge commit later": job.pull_request and not job.merge_head,
        "the job's name: only the scripts show the row": not job.job_name,
        "the steps: the log has no `Run` group, so scripts and environment are unknown": not job.steps,
        f"the values of {masked}: GitHub shows secrets as ***, so yours are used": masked,
        "the image: no `docker run` could be read from the script": "docker" in scripts and not job.image,
        f"the image: the script calls it {job.image}, known only to the shell": "$" in job.image,
        f"the image's digest: no pull of {job.image} is in the log": job.image and not job.digest,
        "the GPU model and driver: the job did not print nvidia-smi's table": job.takes_gpus and not job.gpu_models,
        "the packages: the job printed none": not job.packages,
        "the log's end: the runner's last message is missing, so the log is incomplete": not is_whole,
        "the exit code: no step ended with `Process completed with exit code`": has_no_code,
    }
    return tuple(sentence for sentence, is_missing in missing.items() if is_missing)
