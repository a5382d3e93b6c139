"""Commands about runs that exist: `runs`, `logs`, `attach`, `fetch`, `cancel`, `shell`."""

from __future__ import annotations

from invoke.context import Context

from ci_tasks.commands.common import HOST, JSON, ONLY, RUN, command, finish

_ON_HOST = f"{HOST}, for a run that was begun elsewhere"


@command(
    help={
        "label": "only runs of this label",
        "row": ONLY,
        "status": "only these, with commas: passed, failed, vacuous, blocked, cancelled, lost, running, planned",
        "host": "only runs on these hosts, with commas",
        "commit": "only runs of the commit whose hash begins so",
        "since": "a date, a time, or how long ago: 2026-11-01, 2026-11-01T18:30, 12h, 3d",
        "until": "the same; a date means the end of that day",
        "limit": "how many, newest first (else 20)",
        "flakes": "count how each row ended on each host, over all such runs",
        "json": JSON,
    }
)
def runs(
    c: Context,
    label: str = "",
    row: str = "",
    status: str = "",
    host: str = "",
    commit: str = "",
    since: str = "",
    until: str = "",
    limit: str = "",
    flakes: bool = False,
    json: bool = False,
) -> None:
    """List runs, newest first: status, time, reason.

    invoke runs --limit 5
    invoke runs --label ckpt --status failed,lost --since 3d
    invoke runs --row async --host h100a --commit 25740fd8
    invoke runs --flakes --label ckpt      how often each row passed and failed, how long it took and waited
    invoke runs --json                     their records, for programs
    """

    def flow() -> int:
        from ci_tasks.errors import UsageError
        from ci_tasks.flows.looking import Words, show_flakes, show_runs

        words = Words(label, row, status, host, commit, since, until, limit)
        if flakes and limit:
            raise UsageError("--flakes counts all runs that are meant, so --limit has no meaning", hint="use --since")
        return show_flakes(words, json=json) if flakes else show_runs(words, json=json)

    finish(flow)


@command(
    positional=["run"],
    help={"run": "a run's id or its beginning, or `last`", "follow": "go on until the run has ended"},
)
def logs(c: Context, run: str, follow: bool = False) -> None:
    """Print a run's log, byte for byte.

    invoke logs 20261120-103000-ckpt.03
    """

    def flow() -> int:
        from ci_tasks.flows.attending import show_log

        return show_log(run, follow=follow)

    finish(flow)


@command(positional=["run"], help={"run": RUN, "host": _ON_HOST})
def attach(c: Context, run: str, host: str = "") -> None:
    """Follow runs to their end and bring them home.

    invoke attach last                                   ^C leaves, the runs go on
    invoke attach 20261120-103000-ckpt --host h100a      a colleague's run, from its host
    """

    def flow() -> int:
        from ci_tasks.flows.attending import attach
        from ci_tasks.flows.source import open_config

        return attach(run, open_config(), host or None)

    finish(flow)


@command(positional=["run"], help={"run": RUN, "host": _ON_HOST})
def fetch(c: Context, run: str, host: str = "") -> None:
    """Bring home what there is of runs on other hosts.

    invoke fetch last
    """

    def flow() -> int:
        from ci_tasks.flows.attending import fetch
        from ci_tasks.flows.source import open_config

        return fetch(run, open_config(), host or None)

    finish(flow)


@command(positional=["run"], help={"run": RUN, "host": _ON_HOST})
def cancel(c: Context, run: str, host: str = "") -> None:
    """End a run with everything it started.

    invoke cancel last
    """

    def flow() -> int:
        from ci_tasks.flows.attending import cancel
        from ci_tasks.flows.source import open_config

        ended = cancel(run, open_config(), host or None)
        print("\n".join(f"cancelled {id}" for id in ended) or "nothing of it was running")
        return 0

    finish(flow)


@command(positional=["run"], help={"run": "a run's id or its beginning, or `last`"})
def shell(c: Context, run: str) -> None:
    """Open bash where a run is, with its environment.

    invoke shell last                     a run that goes on, or a failed one of `--keep`
    """

    def flow() -> int:
        from ci_tasks.flows.entering import shell

        return shell(run)

    finish(flow)
