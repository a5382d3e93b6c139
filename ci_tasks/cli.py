"""The command line: one function a command, each a few lines over a flow. Heavy imports stay inside the commands, since
`invoke --list` is to be as quick as invoke itself."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from functools import partial
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.program import Program
from invoke.tasks import task

from ci_tasks import parser

# Without short flags: they would be made up from what is free, and -r would mean --repo here and --reuse there.
command = partial(task, auto_shortflags=False)

_REPO = "the checkout (else CI_TASKS_REPO, the current directory, ../slime, the embedded sample)"
_REV = "read the checkout at this revision instead of its working tree"
_WORKFLOW = "another workflow file than .github/workflows/pr-test.yml"
_ONLY = "parts of row names, with commas; rows that contain one of them"
_JSON = "print JSON"
_BASE = "what changed tests are compared with (else origin/main)"
_HOST = "a host of hosts.yaml"
_LABEL = "a label of the workflow; `jobs` lists them"
_COMMON = {"repo": _REPO, "rev": _REV, "workflow": _WORKFLOW, "base": _BASE}


parser.install()


def _finish(flow: Callable[[], int]) -> None:
    from ci_tasks.door import run

    code = run(flow)
    if code:
        raise Exit(code=code)


def _print_json(value: Any) -> None:
    print(json_module.dumps(value, indent=2, ensure_ascii=False))


@command(positional=["label"], help={**_COMMON, "label": "only this label", "json": _JSON})
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
            _print_json([row.public() for row in found])
        else:
            print(source.headline)
            print("\n".join(table.jobs(found)))
        return 0

    _finish(flow)


@command(
    positional=["label"],
    help={
        **_COMMON,
        "label": _LABEL,
        "only": _ONLY,
        "host": _HOST,
        "json": _JSON,
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
            _print_json(plans)
        else:
            print(source.headline)
            print("\n".join(describe(plans)))
        return 0

    _finish(flow)


def _run(
    label: str, only: str, host: str, jobs: str, reuse: bool, repo: str, rev: str, workflow: str, base: str
) -> None:
    def flow() -> int:
        from ci_tasks.errors import UsageError
        from ci_tasks.flows.prepare import Request
        from ci_tasks.flows.running import run
        from ci_tasks.flows.source import open_config, open_source

        if not host:
            raise UsageError("remote needs --host NAME", hint="`invoke hosts` lists the names")
        if jobs and not (jobs.isdigit() and int(jobs)):
            raise UsageError(f"--jobs is a number of rows at once, not {jobs!r}")
        source = open_source(repo, rev or None, workflow or None)
        request = Request(label, only or None, host, base or None)
        return run(source, open_config(), request, jobs=int(jobs) if jobs else None, reuse=reuse)

    _finish(flow)


_RUN = {
    **_COMMON,
    "label": _LABEL,
    "only": _ONLY,
    "jobs": "rows at once (else one a core, or as many as there are GPUs for)",
    "reuse": "keep the venv of the last run, if its install steps are the same",
}


@command(positional=["label"], help=_RUN)
def run(
    c: Context,
    label: str,
    only: str = "",
    jobs: str = "",
    reuse: bool = False,
    repo: str = "",
    rev: str = "",
    workflow: str = "",
    base: str = "",
) -> None:
    """Run a CI label on this machine; the same as `remote --host local`.

    invoke run cpu-unittest
    invoke run cpu-unittest --only metrics,rewards --jobs 4
    """
    _run(label, only, "local", jobs, reuse, repo, rev, workflow, base)


@command(positional=["label"], help={**_RUN, "host": _HOST})
def remote(
    c: Context,
    label: str,
    host: str = "",
    only: str = "",
    jobs: str = "",
    reuse: bool = False,
    repo: str = "",
    rev: str = "",
    workflow: str = "",
    base: str = "",
) -> None:
    """Run a CI label on a host of hosts.yaml.

    invoke remote --host sim ckpt
    invoke remote --host sim megatron --only ppo
    """
    _run(label, only, host, jobs, reuse, repo, rev, workflow, base)


@command(help={"json": _JSON})
def hosts(c: Context, json: bool = False) -> None:
    """List the hosts of hosts.yaml.

    invoke hosts                      which file was read, and what it has
    CI_TASKS_HOSTS=mine.yaml invoke hosts
    """

    def flow() -> int:
        from ci_tasks.flows.listing import list_hosts
        from ci_tasks.flows.source import open_config
        from ci_tasks.report.table import columns

        config = open_config()
        found = list_hosts(config)
        if json:
            _print_json(found)
        else:
            head = ("HOST", "KIND", "ADDRESS", "RUNTIME", "GPUS")
            body = [(h["name"], h["kind"], h["address"] or "-", h["runtime"], _gpus(h)) for h in found]
            print("\n".join([f"from {config.file}", *columns([head, *body])]))
        return 0

    _finish(flow)


def _gpus(host: dict[str, Any]) -> str:
    count = "as found" if host["gpus"] is None else str(host["gpus"])
    return f"{count} (pretend)" if host["simulate"] else count


@command(help={"json": _JSON, "limit": "how many, newest first"})
def runs(c: Context, json: bool = False, limit: int = 20) -> None:
    """List runs, newest first: status, time, reason.

    invoke runs --limit 5
    invoke runs --json                their records, for programs
    """

    def flow() -> int:
        from ci_tasks.flows.looking import list_runs
        from ci_tasks.report.table import columns

        found = list_runs(limit)
        if json:
            _print_json(found)
        elif not found:
            print("no runs yet")
        else:
            head = ("RUN", "STATUS", "ROW", "HOST", "STARTED", "REASON")
            body = [
                (r["id"], r["status"], r["row"], r["host"], (r["started_at"] or "-")[:19], r["reason"] or "")
                for r in found
            ]
            print("\n".join(columns([head, *body])))
        return 0

    _finish(flow)


@command(
    positional=["run"],
    help={"run": "a run's id or its beginning, or `last`", "follow": "go on until the run has ended"},
)
def logs(c: Context, run: str, follow: bool = False) -> None:
    """Print a run's log, byte for byte.

    invoke logs 20261120-103000-ckpt.03
    """

    def flow() -> int:
        from ci_tasks.flows.looking import show_log

        return show_log(run, follow)

    _finish(flow)


@command(positional=["run"], help={"run": "a run's id, a batch, the beginning of either, or `last`"})
def cancel(c: Context, run: str) -> None:
    """End a run with everything it started.

    invoke cancel last
    """

    def flow() -> int:
        from ci_tasks.flows.looking import cancel

        ended = cancel(run)
        print("\n".join(f"cancelled {id}" for id in ended) or "nothing of it was running")
        return 0

    _finish(flow)


namespace = Collection(jobs, plan, run, remote, hosts, runs, logs, cancel)


def main() -> None:
    """The program `ci-tasks`: the same commands, from any directory."""
    from ci_tasks import __version__

    Program(name="ci-tasks", binary="ci-tasks", namespace=namespace, version=__version__).run()
