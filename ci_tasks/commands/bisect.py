"""The command `bisect`."""

from __future__ import annotations

from invoke.context import Context

from ci_tasks.commands.common import LABEL, REPO, WORKFLOW, command, finish


@command(
    positional=["label"],
    help={
        "label": LABEL,
        "only": "the row's name, or a part that no other row has",
        "good": "a revision where the row passes",
        "bad": "a revision where it fails, be it now and then (default: HEAD)",
        "host": "hosts of hosts.yaml with commas, each runs one commit at a time (default: local)",
        "repeat": "run a commit that passes at least so often (else as often as the rate of the failure asks for)",
        "signature": "the failure to look for, as `triage` names it (else the one seen most at --bad)",
        "first-parent": "look at merges as one commit each",
        "resume": "go on with a bisection that was begun; the same words do so anyway",
        "fresh": "begin anew, whatever was found out before",
        "image": "run in this image instead of CI's",
        "reuse": "keep the venv of the last run, if its install steps are the same",
        "repo": REPO,
        "workflow": WORKFLOW,
    },
)
def bisect(
    c: Context,
    label: str,
    only: str = "",
    good: str = "",
    bad: str = "HEAD",
    host: str = "local",
    repeat: str = "",
    signature: str = "",
    first_parent: bool = False,
    resume: bool = False,
    fresh: bool = False,
    image: str = "",
    reuse: bool = False,
    repo: str = "",
    workflow: str = "",
) -> None:
    """Find the commit after which a row fails, be it now and then.

    invoke bisect cpu-unittest --only rewards --good v1.2 --bad main
    invoke bisect ckpt --only async-save --good HEAD~64 --host h100a,h100b
    invoke bisect ckpt --only async-save --good HEAD~64 --host h100a --resume
    """

    def flow() -> int:
        from ci_tasks.errors import UsageError

        if not good or not only:
            raise UsageError(
                f"bisect needs {'--good REV' if only else '--only ROW'}",
                hint="`invoke bisect LABEL --only ROW --good REV [--bad REV]`; `jobs` lists the rows",
            )
        if repeat and not (repeat.isdecimal() and int(repeat)):
            raise UsageError(f"--repeat is a number of runs, not {repeat!r}")
        if resume and fresh:
            raise UsageError("--resume and --fresh exclude each other")
        hosts = tuple(name for name in (part.strip() for part in host.split(",")) if name)
        if not hosts:
            raise UsageError("--host names no host", hint="`invoke hosts` lists the names")
        from ci_tasks.flows.bisecting import Asked, bisect
        from ci_tasks.flows.source import open_config

        asked = Asked(
            good=good,
            bad=bad,
            label=label,
            only=only,
            hosts=hosts,
            repeat=int(repeat or 0),
            signature=signature,
            first_parent=first_parent,
            resume=resume,
            fresh=fresh,
            repo=repo,
            workflow=workflow,
            image=image,
            reuse=reuse,
        )
        return bisect(asked, open_config())

    finish(flow)
