"""`prefetch`: models and datasets on the host before a run holds its GPUs."""

from __future__ import annotations

from invoke.context import Context

from ci_tasks.commands.common import BASE, HOST, JSON, LABEL, ONLY, REPO, REV, WORKFLOW, command, finish


@command(
    positional=["label"],
    help={
        "label": LABEL,
        "host": f"{HOST} (default: local)",
        "only": ONLY,
        "dry-run": "show what is there and what is not, and bring nothing",
        "json": JSON,
        "repo": REPO,
        "rev": REV,
        "workflow": WORKFLOW,
        "base": BASE,
    },
)
def prefetch(
    c: Context,
    label: str,
    host: str = "local",
    only: str = "",
    dry_run: bool = False,
    json: bool = False,
    repo: str = "",
    rev: str = "",
    workflow: str = "",
    base: str = "",
) -> None:
    """Bring the models and datasets that a label's tests will download to the host.

    invoke prefetch megatron --host h100a --dry-run    what is there, how much is to come, and what is gated
    invoke prefetch megatron --host h100a              the same, and brings it; go on after ^C with the same command
    invoke prefetch ckpt --only async --json

    The exit code is 0 where nothing keeps a run from its files, and 125 where a repository is gated or cannot be
    found, the hub does not answer, or the disk is too small: a run would be blocked.
    """

    def flow() -> int:
        import sys

        from ci_tasks.flows import prefetching
        from ci_tasks.flows.source import open_config, open_source
        from ci_tasks.flows.transfers import Shown

        source = open_source(repo or None, rev or None, workflow or None)
        print(source.headline, file=sys.stderr)
        ask = prefetching.Ask(label, only or None, host, base or None, dry_run, json)
        with Shown(sys.stderr) as shown:
            return prefetching.prefetch(source, open_config(), ask, say=shown.say, progress=shown.progress)

    finish(flow)
