"""The command `lint`."""

from __future__ import annotations

from invoke.context import Context

from ci_tasks.commands.common import REPO, REV, WORKFLOW, command, finish


@command(
    help={
        "format": "text, json, sarif (code scanning) or github (annotations of a pull request)",
        "json": "as --format json",
        "baseline": "a file of known findings, which are not told; it can only shrink",
        "write-baseline": "make that file of what is found now",
        "shrink": "take out of the baseline what is found no more",
        "repo": REPO,
        "rev": REV,
        "workflow": WORKFLOW,
    }
)
def lint(
    c: Context,
    format: str = "text",
    json: bool = False,
    baseline: str = "",
    write_baseline: str = "",
    shrink: bool = False,
    repo: str = "",
    rev: str = "",
    workflow: str = "",
) -> None:
    """Say what is wrong with the checkout's CI before anything runs.

    invoke lint
    invoke lint --rev v0.2.2 --json
    invoke lint --write-baseline lint.json          today's findings, to live with
    invoke lint --baseline lint.json --format github

    Ends with 0 where nothing is wrong, 1 where there is a finding.
    """

    def flow() -> int:
        from pathlib import Path

        from ci_tasks.errors import UsageError
        from ci_tasks.flows.linting import JSON, Ask, run
        from ci_tasks.flows.source import open_source

        if baseline and write_baseline:
            raise UsageError("--baseline and --write-baseline exclude each other", hint="write it once, then name it")
        if shrink and not baseline:
            raise UsageError("--shrink needs --baseline FILE")
        named = baseline or write_baseline
        ask = Ask(
            form=JSON if json else format,
            baseline=Path(named).expanduser() if named else None,
            shrink=shrink,
            write=bool(write_baseline),
        )
        return run(open_source(repo, rev or None, workflow or None), ask)

    finish(flow)
