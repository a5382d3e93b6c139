"""Commands about a label of the checkout: `jobs`, `plan`, `run`, `remote`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke.context import Context

from ci_tasks.commands.common import COMMON, HOST, JSON, LABEL, ONLY, command, finish, print_json, repetitions

if TYPE_CHECKING:
    from ci_tasks.judge.repeats import Goal


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
    },
)
def plan(
    c: Context,
    label: str,
    only: str = "",
    host: str = "local",
    json: bool = False,
    out: str = "",
    repo: str = "",
    rev: str = "",
    workflow: str = "",
    base: str = "",
) -> None:
    """Write what `run` would execute, and what differs from CI.

    invoke plan ckpt --only async-save --host sim --out /tmp/plan
    bash /tmp/plan/01/run.sh
    """

    def flow() -> int:
        from pathlib import Path

        from ci_tasks.flows.prepare import Request
        from ci_tasks.flows.running import plan
        from ci_tasks.flows.source import open_config, open_source
        from ci_tasks.report.plan import describe

        source = open_source(repo, rev or None, workflow or None)
        request = Request(label, only or None, host, base or None, Path(out) if out else None)
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


def _run(
    label: str,
    only: str,
    host: str,
    jobs: str,
    reuse: bool,
    repo: str,
    rev: str,
    workflow: str,
    base: str,
    *,
    keep: bool = False,
    detach: bool = False,
    image: str = "",
    repeat: str = "",
    until_fail: bool = False,
) -> None:
    def flow() -> int:
        from contextlib import closing

        from ci_tasks.errors import UsageError
        from ci_tasks.flows.sites import open_site
        from ci_tasks.flows.source import open_config, open_source

        if not host:
            raise UsageError("remote needs --host NAME", hint="`invoke hosts` lists the names")
        if jobs and not (jobs.isdigit() and int(jobs)):
            raise UsageError(f"--jobs is a number of rows at once, not {jobs!r}")
        goal = _goal(repeat, until_fail, keep=keep, detach=detach)
        config = open_config()
        wanted = int(jobs) if jobs else None
        if goal:
            from ci_tasks.flows import repeating
            from ci_tasks.flows.prepare import Request

            source = open_source(repo, rev or None, workflow or None)
            request = Request(label, only or None, host, base or None, keep=keep, image=image or None)
            return repeating.repeat(source, config, request, goal, jobs=wanted, reuse=reuse)
        # First of all: the connection is made and the tree recorded while the rest is loaded and read.
        with closing(open_site(config.host(host))) as site:
            source = open_source(repo, rev or None, workflow or None)
            site.expect(source.path, rev=source.rev, base=base or None)
            from ci_tasks.flows.prepare import Request
            from ci_tasks.flows.running import run

            slots = (wanted or _SLOTS) if detach else 0
            request = Request(label, only or None, host, base or None, keep=keep, image=image or None, slots=slots)
            return run(source, config, request, jobs=wanted, reuse=reuse, detach=detach, open_site=lambda _: site)

    finish(flow)


def _goal(repeat: str, until_fail: bool, *, keep: bool, detach: bool) -> Goal | None:
    """What --repeat and --until-fail ask for; None without them. Raises UsageError."""
    if not repeat and not until_fail:
        return None
    from ci_tasks.errors import UsageError
    from ci_tasks.judge.repeats import Goal

    flag = "--repeat" if repeat else "--until-fail"
    count = repetitions(repeat)
    if detach:
        raise UsageError(
            f"{flag} and --detach exclude each other: after a repetition, somebody has to decide on the next",
            hint="leave --detach away, and let the command itself go on in tmux or with nohup",
        )
    if keep and not until_fail:
        raise UsageError(
            "--repeat and --keep would keep a container and a workspace of every failure",
            hint="with --until-fail, those of the first failure are kept",
        )
    return Goal(count or _UNTIL_FAIL_LIMIT, until_fail)


_RUN = {
    **COMMON,
    "label": LABEL,
    "only": ONLY,
    "jobs": "rows at once (else one a core, or as many as there are GPUs for)",
    "reuse": "keep the venv of the last run, if its install steps are the same",
    "image": "run in this image instead of CI's, such as the digest that CI's log names",
    "keep": "where a row fails, its container and workspace stay for `shell`",
    "repeat": "run each row so often, on one tree: is it flaky?",
    "until-fail": "repeat until a row fails, at most 100 or --repeat times",
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
    repo: str = "",
    rev: str = "",
    workflow: str = "",
    base: str = "",
) -> None:
    """Run a CI label on this machine, as `remote --host local`.

    invoke run cpu-unittest
    invoke run cpu-unittest --only metrics,rewards --jobs 4
    invoke run cpu-unittest --only metrics --repeat 20
    """
    _run(
        *(label, only, "local", jobs, reuse, repo, rev, workflow, base),
        keep=keep,
        image=image,
        repeat=repeat,
        until_fail=until_fail,
    )


@command(
    positional=["label"],
    help={
        **_RUN,
        "host": HOST,
        "detach": "start the rows and come back at once; `attach` brings them home",
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
    repo: str = "",
    rev: str = "",
    workflow: str = "",
    base: str = "",
) -> None:
    """Run a CI label on a host of hosts.yaml.

    invoke remote --host sim ckpt
    invoke remote --host h100a megatron --only ppo
    invoke remote --host h100a image --detach
    invoke remote --host h100a ckpt --only async --until-fail --keep
    """
    _run(
        *(label, only, host, jobs, reuse, repo, rev, workflow, base),
        keep=keep,
        detach=detach,
        image=image,
        repeat=repeat,
        until_fail=until_fail,
    )
