"""Commands about a job that failed in CI: `triage`, `reproduce`."""

from __future__ import annotations

from invoke.context import Context

from ci_tasks.commands.common import HOST, JSON, REPO, WORKFLOW, command, finish, print_json, repetitions

_LOG = "a saved job log, the zip of a run, or - for what is piped in (`gh run view RUN --log-failed`)"
_JOB = "which job, where the log holds several"
_URL = "a failed job, run or pull request on GitHub; GH_TOKEN or `gh auth login` lets us in"


@command(positional=["log"], help={"log": _LOG, "job": _JOB, "json": JSON})
def triage(c: Context, log: str, job: str = "", json: bool = False) -> None:
    """Say what failed in a job's log, and why.

    invoke triage failed.log
    gh run view 123 --log-failed | invoke triage -
    """

    def flow() -> int:
        from ci_tasks.flows.ci_log import from_file
        from ci_tasks.flows.reproducing import show_triage

        found = from_file(log, job or None)
        if json:
            print_json(found.triage.public())
            return 0
        return show_triage(found)

    finish(flow)


@command(
    help={
        "log": _LOG,
        "url": _URL,
        "job": _JOB,
        "host": f"{HOST} (default: local)",
        "on-my-tree": "run the working tree instead of CI's commit, to prove a fix",
        "repeat": "run it so often; one equal failure is enough",
        "label": "the label, where the log does not say it",
        "only": "the row, where the log does not say it",
        "rev": "the commit, where the log does not say it or another one is meant",
        "image": "run in this image instead of the one that CI ran",
        "keep": "where it fails, its container and workspace stay for `shell`",
        "repo": REPO,
        "workflow": WORKFLOW,
    }
)
def reproduce(
    c: Context,
    log: str = "",
    url: str = "",
    job: str = "",
    host: str = "local",
    on_my_tree: bool = False,
    repeat: str = "",
    label: str = "",
    only: str = "",
    rev: str = "",
    image: str = "",
    keep: bool = False,
    repo: str = "",
    workflow: str = "",
) -> None:
    """Run a job that failed in CI again: the same failure?

    invoke reproduce --url https://github.com/OWNER/REPO/actions/runs/1/job/2 --host h100a
    gh run view 123 --log-failed | invoke reproduce --log - --host h100a
    invoke reproduce --log failed.log --host h100a --on-my-tree      is it fixed?

    Ends with 0 where it is reproduced, 1 where it passed here, 3 where it fails otherwise, 125 where it is blocked.
    """

    def flow() -> int:
        from ci_tasks.errors import UsageError
        from ci_tasks.flows import ci_log
        from ci_tasks.flows.reproducing import Ask, reproduce
        from ci_tasks.flows.source import open_config

        if bool(log) == bool(url):
            raise UsageError(
                "reproduce needs --log FILE, --log - or --url URL, one of them",
                hint="`invoke --help reproduce` has examples",
            )
        if on_my_tree and rev:
            raise UsageError("--on-my-tree and --rev exclude each other: they name two trees")
        repeats = repetitions(repeat) or 1
        config = open_config()
        config.host(host)  # before anything is downloaded
        ask = Ask(
            host=host,
            repo=repo or None,
            rev=rev or None,
            workflow=workflow or None,
            label=label or None,
            only=only or None,
            image=image or None,
            on_my_tree=on_my_tree,
            repeats=repeats,
            keep=keep,
        )
        return reproduce(ci_log.from_url(url) if url else ci_log.from_file(log, job or None), config, ask)

    finish(flow)
