"""The venv that the rows of a command share: made by CI's own install steps, over the packages of earlier runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ci_tasks.agent import archive, create_run_directory, run_directory
from ci_tasks.agent.cleanup.remove_tree import remove_tree
from ci_tasks.agent.containers.rules import NONE, ContainerRules
from ci_tasks.agent.files import open_file
from ci_tasks.agent.run_directory import RunDir
from ci_tasks.agent.setup_manifest import COPY, VENV, WORKSPACE, check_setup
from ci_tasks.config import HostSpec
from ci_tasks.hosts import local_runs
from ci_tasks.hosts.last_line import last_line
from ci_tasks.planning.planner import SharedSetup
from ci_tasks.records import Plan, Triage
from ci_tasks.results.judge_run import log_facts, log_triage
from ci_tasks.results.verdict import JobEnd

Say = Callable[[str], None]
ShouldContinue = Callable[[], bool]  # whether anybody still waits for it
CheckOut = Callable[[str], None]  # makes a workspace

_OURS = b"ci-tasks: "  # what our own program prints among the steps' output
_LONGEST_LINE = 300
_BLOCKED = 125  # the exit code of what run.sh itself gives up
_MINUTES = 60.0  # that install steps may take
_CLIENT_SECONDS = 900.0  # that they go on without a client: a laptop may sleep, or its network be away
_POLL_SECONDS = 0.05
_REMINDER = 20.0  # seconds after which they say how far they are


def _always() -> bool:
    return True


def install(
    setup: SharedSetup, check_out: CheckOut, host: HostSpec, say: Say, should_continue: ShouldContinue = _always
) -> str | None:
    """Run the install steps, unless the command that this one resumes has. Returns why they failed, or None."""
    run = RunDir(setup.directory)
    if os.path.lexists(run.status):
        if _were_done(setup, run):
            say("install steps: done before")
            return None
        remove_tree(setup.directory, None, "none", {})
    write(setup, host)
    check_out(setup.workspace)
    say(f"install steps: running, log {run.log}")
    begun = time.monotonic()
    problem = _execute(run, say, should_continue)
    if problem is None:
        check_setup(setup.directory)
        say_result(run, time.monotonic() - begun, say)
    return problem


def _were_done(setup: SharedSetup, run: RunDir) -> bool:
    """Whether an earlier command got to their end, and rows may use what they made. Raises SetupChanged."""
    local_runs.cancel(run)
    while not local_runs.has_ended(run):
        time.sleep(_POLL_SECONDS)
    if local_runs.read_run_status(run).exit_code != 0 or not os.path.exists(f"{setup.directory}/{VENV}"):
        return False
    check_setup(setup.directory)
    return True


def say_result(run: RunDir, seconds: float, say: Say) -> None:
    """How long the steps took, and what their log says of packages that are shared with other runs."""
    say(f"install steps: done in {seconds:.0f} s")
    with suppress(OSError), open_file(run.log) as log:
        for line in log:
            if line.startswith(_OURS):
                say(line[len(_OURS) :][:_LONGEST_LINE].decode("utf-8", "replace").strip())


class EnvironmentCopies:
    """Copies of what install steps made, with which repetitions of the rows begin. `make` and `restore` do it for the
    directory of install steps, and raise `errors`."""

    def __init__(
        self, make: Callable[[str], object], restore: Callable[[str], object], errors: tuple[type[Exception], ...]
    ) -> None:
        self._make, self._restore, self._errors = make, restore, errors
        self._made: set[str] = set()

    def make(self, setup: SharedSetup, say: Say) -> None:
        try:
            self._make(setup.directory)
        except self._errors as error:
            say(f"install steps: run again for each repetition, {error}")
        else:
            self._made.add(setup.directory)

    def restore(self, setup: SharedSetup, say: Say) -> bool:
        """Whether it was restored; else the install steps run again."""
        if setup.directory not in self._made:
            return False
        self._made.discard(setup.directory)
        begun = time.monotonic()
        try:
            self._restore(setup.directory)
        except self._errors as error:
            say(f"install steps: run again, {error}")
            return False
        self._made.add(setup.directory)
        say(f"install steps: what they made is restored, in {time.monotonic() - begun:.1f} s")
        return True


def prepare(
    setups: Sequence[SharedSetup],
    copies: EnvironmentCopies | None,
    install: Callable[[SharedSetup], str | None],
    say: Say,
) -> str | None:
    """Restore what the install steps made, or run them by `install`, until one has a problem, which is returned."""
    for setup in setups:
        if copies and copies.restore(setup, say):
            continue
        if problem := install(setup):
            return problem
        if copies:
            copies.make(setup, say)
    return None


def remove_venv(directory: str) -> list[str]:
    """No row needs the venv and the checkout any more; log and plan stay. Returns a line for each problem."""
    parts = (VENV, WORKSPACE, COPY)
    return [line for name in parts for line in remove_tree(f"{directory}/{name}", None, "none", {})]


def write(setup: SharedSetup, host: HostSpec) -> None:
    """The environment's own run directory; `bash run.sh` in it makes it ready."""
    create_run_directory.write_run_dir(RunDir(setup.directory), setup_plan(setup, host), archive.for_this_machine())


def setup_plan(setup: SharedSetup, host: HostSpec) -> Plan:
    """plan.json of the install steps: they are a run like any other, with neither container nor GPU."""
    return Plan(
        id=os.path.basename(setup.directory),
        secrets=setup.secrets,
        host_env=host.env,
        timeout_minutes=_MINUTES,
        stall_minutes=host.stall_minutes,
        container=ContainerRules(runtime=NONE),
        script=setup.script,
        keeps_workspace=True,
        install=setup.install,
        client_seconds=0.0 if host.kind == "local" else _CLIENT_SECONDS,
    )


def failure_message(run: RunDir, code: int | None) -> str:
    """Why install steps that ended with `code` are no good."""
    blocked = log_facts(run).blocked
    if code == _BLOCKED and blocked:
        return f"{blocked} (log {run.log})"
    triage = log_triage(run, JobEnd(run_directory.END_EXIT, code or 1))
    last = log_facts(run).last_line if triage is None else None
    line = (_blamed(triage) if triage else last and last[1]) or "no output"
    return f"the install steps ended with {code}: {line} (log {run.log})"


def _blamed(triage: Triage) -> str:
    """The line that is the reason; where none is sure, the best candidate."""
    return triage.text or triage.line or next((candidate.line for candidate in triage.candidates), "")


def _execute(run: RunDir, say: Say, should_continue: ShouldContinue) -> str | None:
    spoken = time.monotonic()

    def remind() -> None:
        nonlocal spoken
        if not should_continue():
            raise KeyboardInterrupt
        if time.monotonic() - spoken > _REMINDER:
            spoken = time.monotonic()
            say(f"install steps: {last_line(run)}")

    code = local_runs.complete(run, remind)
    return None if code == 0 else failure_message(run, code)
