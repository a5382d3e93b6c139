"""Commands about a label of the checkout: `jobs`, `plan`, `run`, `remote`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from invoke.context import Context

from ci_tasks.commands.common import COMMON, HOST, JSON, LABEL, ONLY, command, finish, print_json, repetitions

if TYPE_CHECKING:
    from ci_tasks.config import Config
    from ci_tasks.flows.course import Policy
    from ci_tasks.flows.source import Source
    from ci_tasks.judge.repeats import Goal


_NODES = "over so many nodes of a Slurm cluster each row runs, with its GPUs on each"


@command(positional=["label"], help={**COMMON, "label": "only this label", "json": JSON})
def jobs(
    c: Context,
    label: str | None = None,
    json: bool = False,
    repo: str = "",
    rev: str = "",
    workflow: str = "",
    base: str = "",
) -> None:
    """List the rows of the checkout's workflow.

    invoke jobs                       every row of the checkout
    invoke jobs ckpt --json           one label, for programs
    invoke jobs --rev v0.2.2          at another revision
    """

    def flow() -> int:
        from ci_tasks.flows.listing import list_jobs
        from ci_tasks.flows.source import open_source
        from ci_tasks.report import table

        source = open_source(repo, rev or None, workflow or None)
        found = list_jobs(source, label or None, base or None)
        if json:
            print_json([row.public() for row in found])
        else:
            print(source.headline)
            print("\n".join(table.jobs(found)))
        return 0

    finish(flow)


@command(
    positional=["label"],
    help={
        **COMMON,
        "label": LABEL,
        "only": ONLY,
        "host": HOST,
        "json": JSON,
        "out": "a new directory for the run directories",
        "nodes": _NODES,
    },
)
def plan(
    c: Context,
    label: str,
    only: str = "",
    host: str = "local",
    json: bool = False,
    out: str = "",
    nodes: str = "",
    repo: str = "",
    rev: str = "",
    workflow: str = "",
    base: str = "",
) -> None:
    """Write what `run` would execute, and what differs from CI.

    invoke plan ckpt --only async-save --host sim --out /tmp/plan
    invoke plan megatron --only qwen3_30B --host cluster --nodes 2
    bash /tmp/plan/01/run.sh
    """

    def flow() -> int:
        from pathlib import Path

        from ci_tasks.flows.prepare import Request
        from ci_tasks.flows.running import plan
        from ci_tasks.flows.source import open_config, open_source
        from ci_tasks.report.plan import describe

        source = open_source(repo, rev or None, workflow or None)
        directory = Path(out) if out else None
        request = Request(label, only or None, host, base or None, directory, nodes=_nodes(nodes))
        plans = plan(source, open_config(), request)
        if json:
            print_json(plans)
        else:
            print(source.headline)
            print("\n".join(describe(plans)))
        return 0

    finish(flow)


_SLOTS = 4  # CPU rows of detached runs at once, as many as GitHub's runners have cores
_UNTIL_FAIL_LIMIT = 100


@dataclass(frozen=True)
class _Flags:
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


def _run(flags: _Flags) -> None:
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


def _once(flags: _Flags, config: Config) -> int:
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
            nodes=_nodes(flags.nodes),
            prefetch=flags.prefetch,
        )
        return run(source, config, request, how, open_site=lambda spec: sites[spec.name])


def _repeat(flags: _Flags, config: Config, goal: Goal) -> int:
    from ci_tasks.flows import repeating
    from ci_tasks.flows.prepare import Request
    from ci_tasks.flows.running import How
    from ci_tasks.flows.source import open_source

    source = open_source(flags.repo, flags.rev or None, flags.workflow or None)
    rows = _last_failed(flags, source)
    image = flags.image or None
    request = Request(
        flags.label, flags.only or None, flags.host, flags.base or None, keep=flags.keep, image=image, rows=rows
    )
    return repeating.repeat(source, config, request, goal, How(_jobs(flags), flags.reuse))


def _nodes(text: str) -> int:
    if text and not (text.isdecimal() and int(text)):
        from ci_tasks.errors import UsageError

        raise UsageError(f"--nodes is a number of nodes for each row, not {text!r}", hint="such as --nodes 2")
    return int(text) if text else 1


def _jobs(flags: _Flags) -> int | None:
    return int(flags.jobs) if flags.jobs else None


def _policy(flags: _Flags) -> Policy:
    from ci_tasks.flows.course import Policy

    return Policy(fail_fast=flags.fail_fast, retry_failed=flags.retry_failed, explain=flags.explain)


def _last_failed(flags: _Flags, source: Source) -> tuple[str, ...]:
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


def _check_together(flags: _Flags) -> None:
    from ci_tasks.errors import UsageError

    for one, other, why in _EXCLUDE:
        if getattr(flags, one) and getattr(flags, other):
            first, second = (f"--{name.replace('_', '-')}" for name in (one, other))
            raise UsageError(f"{first} and {second} exclude each other: {why}", hint="leave one of them away")


def _goal(flags: _Flags) -> Goal | None:
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


_RUN = {
    **COMMON,
    "label": LABEL,
    "only": ONLY,
    "jobs": "rows at once on a host (else one a core, or as many as there are GPUs for)",
    "reuse": "keep the venv of the last run, if its install steps are the same",
    "image": "run in this image instead of CI's, such as the digest that CI's log names",
    "keep": "where a row fails, its container and workspace stay for `shell`",
    "repeat": "run each row so often, on one tree: is it flaky?",
    "until-fail": "repeat until a row fails, at most 100 or --repeat times",
    "fail-fast": "the first row that fails ends the others",
    "last-failed": "only the rows that did not pass in the last run of the label",
}


@command(positional=["label"], help=_RUN)
def run(
    c: Context,
    label: str,
    only: str = "",
    jobs: str = "",
    reuse: bool = False,
    keep: bool = False,
    image: str = "",
    repeat: str = "",
    until_fail: bool = False,
    fail_fast: bool = False,
    last_failed: bool = False,
    repo: str = "",
    rev: str = "",
    workflow: str = "",
    base: str = "",
) -> None:
    """Run a CI label on this machine, as `remote --host local`.

    invoke run cpu-unittest
    invoke run cpu-unittest --only metrics,rewards --jobs 4
    invoke run cpu-unittest --last-failed
    invoke run cpu-unittest --only metrics --repeat 20
    """
    given = {name: value for name, value in locals().items() if name != "c"}
    _run(_Flags(host="local", **given))


@command(
    positional=["label"],
    help={
        **_RUN,
        "host": f"{HOST}; several, or a pool of it, with commas",
        "detach": "start the rows and come back at once; `attach` brings them home",
        "retry-failed": "a row that failed gets one more attempt; both are told",
        "resume": "go on with the last command of the label that was left before its end",
        "explain": "say of every row where it goes, or why it waits",
        "prefetch": "first the models and data sets that the rows will ask for, as `prefetch` does",
        "nodes": _NODES,
    },
)
def remote(
    c: Context,
    label: str,
    host: str = "",
    only: str = "",
    jobs: str = "",
    reuse: bool = False,
    keep: bool = False,
    detach: bool = False,
    image: str = "",
    repeat: str = "",
    until_fail: bool = False,
    fail_fast: bool = False,
    last_failed: bool = False,
    retry_failed: bool = False,
    resume: bool = False,
    explain: bool = False,
    prefetch: bool = False,
    nodes: str = "",
    repo: str = "",
    rev: str = "",
    workflow: str = "",
    base: str = "",
) -> None:
    """Run a CI label on hosts of hosts.yaml.

    invoke remote --host sim ckpt
    invoke remote --host h100a megatron --only ppo
    invoke remote --host h100a,h100b image               on whichever has GPUs free
    invoke remote --host h100a,h100b image --resume      after the laptop was closed
    invoke remote --host h100a image --detach
    invoke remote --host h100a ckpt --only async --until-fail --keep
    """
    given = {name: value for name, value in locals().items() if name != "c"}
    _run(_Flags(**given))
