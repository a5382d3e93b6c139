"""Commands about a label of the checkout: `jobs`, `plan`, `run`, `remote`."""

from __future__ import annotations

from invoke.context import Context

from ci_tasks.commands.common import COMMON, HOST, JSON, LABEL, ONLY, command, finish, print_json
from ci_tasks.commands.flags import Flags, nodes_of, perform

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
        request = Request(label, only or None, host, base or None, directory, nodes=nodes_of(nodes))
        plans = plan(source, open_config(), request)
        if json:
            print_json(plans)
        else:
            print(source.headline)
            print("\n".join(describe(plans)))
        return 0

    finish(flow)


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
    perform(Flags(host="local", **given))


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
    perform(Flags(**given))
