"""What `run` and `remote` do with their flags: which go together, and what each means for a flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci_tasks.commands.common import finish, repetitions

if TYPE_CHECKING:
    from ci_tasks.config import Config
    from ci_tasks.flows.course import Policy
    from ci_tasks.flows.source import Source
    from ci_tasks.judge.repeats import Goal

_SLOTS = 4  # CPU rows of detached runs at once, as many as GitHub's runners have cores
_UNTIL_FAIL_LIMIT = 100


@dataclass(frozen=True)
class Flags:
    """The flags of `run` and `remote`, as they were typed."""

    label: str
    host: str
    only: str = ""
    jobs: str = ""
    reuse: bool = False
    keep: bool = False
    detach: bool = False
    image: str = ""
    repeat: str = ""
    until_fail: bool = False
    fail_fast: bool = False
    last_failed: bool = False
    retry_failed: bool = False
    resume: bool = False
    explain: bool = False
    prefetch: bool = False
    nodes: str = ""
    repo: str = ""
    rev: str = ""
    workflow: str = ""
    base: str = ""


def perform(flags: Flags) -> None:
    """Run what the flags ask for, and leave with its exit code."""

    def flow() -> int:
        from ci_tasks.errors import UsageError
        from ci_tasks.flows.source import open_config

        if not flags.host:
            raise UsageError("remote needs --host NAME", hint="`invoke hosts` lists the names")
        if flags.jobs and not (flags.jobs.isdecimal() and int(flags.jobs)):
            raise UsageError(f"--jobs is a number of rows at once, not {flags.jobs!r}")
        _check_together(flags)
        config = open_config()
        goal = _goal(flags)
        return _repeat(flags, config, goal) if goal else _once(flags, config)

    finish(flow)


def _once(flags: Flags, config: Config) -> int:
    from contextlib import ExitStack, closing

    from ci_tasks.flows.sites import open_site
    from ci_tasks.flows.source import open_source

    with ExitStack() as stack:
        # First of all: connections are made and the tree recorded while the rest is loaded and read.
        sites = {spec.name: stack.enter_context(closing(open_site(spec))) for spec in config.chosen(flags.host)}
        source = open_source(flags.repo, flags.rev or None, flags.workflow or None)
        next(iter(sites.values())).expect(source.path, rev=source.rev, base=flags.base or None)
        from ci_tasks.flows.prepare import Request
        from ci_tasks.flows.running import How, run

        how = How(_jobs(flags), flags.reuse, flags.detach, _policy(flags), flags.resume)
        request = Request(
            flags.label,
            flags.only or None,
            flags.host,
            flags.base or None,
            keep=flags.keep,
            image=flags.image or None,
            rows=_last_failed(flags, source),
            slots=(how.jobs or _SLOTS) if flags.detach else 0,
            nodes=nodes_of(flags.nodes),
            prefetch=flags.prefetch,
        )
        return run(source, config, request, how, open_site=lambda spec: sites[spec.name])


def _repeat(flags: Flags, config: Config, goal: Goal) -> int:
    from ci_tasks.flows import repeating
    from ci_tasks.flows.prepare import Request
    from ci_tasks.flows.running import How
    from ci_tasks.flows.source import open_source

    source = open_source(flags.repo, flags.rev or None, flags.workflow or None)
    rows = _last_failed(flags, source)
    request = Request(
        flags.label,
        flags.only or None,
        flags.host,
        flags.base or None,
        keep=flags.keep,
        image=flags.image or None,
        rows=rows,
        prefetch=flags.prefetch,
    )
    return repeating.repeat(source, config, request, goal, How(_jobs(flags), flags.reuse, policy=_policy(flags)))


def nodes_of(text: str) -> int:
    """The number of --nodes, 1 where the flag is not given. Raises UsageError."""
    if text and not (text.isdecimal() and int(text)):
        from ci_tasks.errors import UsageError

        raise UsageError(f"--nodes is a number of nodes for each row, not {text!r}", hint="such as --nodes 2")
    return int(text) if text else 1


def _jobs(flags: Flags) -> int | None:
    return int(flags.jobs) if flags.jobs else None


def _policy(flags: Flags) -> Policy:
    from ci_tasks.flows.course import Policy

    return Policy(fail_fast=flags.fail_fast, retry_failed=flags.retry_failed, explain=flags.explain)


def _last_failed(flags: Flags, source: Source) -> tuple[str, ...]:
    """The rows that `--last-failed` means. Raises UsageError where there are none."""
    if not flags.last_failed:
        return ()
    from ci_tasks.errors import UsageError
    from ci_tasks.model import PASSED
    from ci_tasks.runs.history import latest

    last = latest(flags.label, str(source.path))
    if not last:
        raise UsageError(
            f"no run of label {flags.label} on this checkout is known", hint="run it without --last-failed"
        )
    rows = tuple(one.row for one in last if one.status != PASSED)
    if not rows:
        raise UsageError(
            f"every row of {last[0].batch}, the last run of {flags.label}, passed", hint="run it without --last-failed"
        )
    return rows


# Pairs of flags that contradict each other, and why.
_EXCLUDE = (
    ("resume", "only", "--resume goes on with the rows of the command that was left"),
    ("resume", "last_failed", "--resume goes on with the rows of the command that was left"),
    ("resume", "detach", "--resume brings home what runs"),
    ("resume", "repeat", "a command with --repeat cannot be resumed"),
    ("resume", "until_fail", "a command with --until-fail cannot be resumed"),
    ("last_failed", "only", "--last-failed names the rows"),
    ("fail_fast", "detach", "nobody is there to end the others"),
    ("retry_failed", "detach", "nobody is there to try again"),
    ("explain", "detach", "with --detach nothing is decided here"),
    ("retry_failed", "repeat", "--repeat says how often a row fails"),
    ("retry_failed", "until_fail", "--until-fail ends with the first failure"),
    ("fail_fast", "repeat", "--repeat ends when its answer is clear"),
    ("nodes", "repeat", "a row over several nodes is not repeated yet"),
)


def _check_together(flags: Flags) -> None:
    from ci_tasks.errors import UsageError

    for one, other, why in _EXCLUDE:
        if getattr(flags, one) and getattr(flags, other):
            first, second = (f"--{name.replace('_', '-')}" for name in (one, other))
            raise UsageError(f"{first} and {second} exclude each other: {why}", hint="leave one of them away")


def _goal(flags: Flags) -> Goal | None:
    """What --repeat and --until-fail ask for; None without them. Raises UsageError."""
    if not flags.repeat and not flags.until_fail:
        return None
    from ci_tasks.errors import UsageError
    from ci_tasks.judge.repeats import Goal

    flag = "--repeat" if flags.repeat else "--until-fail"
    count = repetitions(flags.repeat)
    if flags.detach:
        raise UsageError(
            f"{flag} and --detach exclude each other: after a repetition, somebody has to decide on the next",
            hint="leave --detach away, and let the command itself go on in tmux or with nohup",
        )
    if flags.keep and not flags.until_fail:
        raise UsageError(
            "--repeat and --keep would keep a container and a workspace of every failure",
            hint="with --until-fail, those of the first failure are kept",
        )
    return Goal(count or _UNTIL_FAIL_LIMIT, flags.until_fail)
