"""Commands about runs that exist: `runs`, `logs`, `attach`, `fetch`, `cancel`, `shell`."""

from __future__ import annotations

from invoke.context import Context

from ci_tasks.commands.common import HOST, JSON, RUN, command, finish, print_json

_ON_HOST = f"{HOST}, for a run that was begun elsewhere"


@command(help={"json": JSON, "limit": "how many, newest first"})
def runs(c: Context, json: bool = False, limit: int = 20) -> None:
    """List runs, newest first: status, time, reason.

    invoke runs --limit 5
    invoke runs --json                their records, for programs
    """

    def flow() -> int:
        from ci_tasks.flows.looking import list_runs
        from ci_tasks.report.table import columns, why

        found = list_runs(limit)
        if json:
            print_json(found)
        elif not found:
            print("no runs yet")
        else:
            head = ("RUN", "STATUS", "ROW", "HOST", "STARTED", "REASON")
            body = [(r["id"], r["status"], r["row"], r["host"], (r["started_at"] or "-")[:19], why(r)) for r in found]
            print("\n".join(columns([head, *body])))
        return 0

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
