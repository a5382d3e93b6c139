"""Commands about hosts: `hosts`, `doctor`, `clean`."""

from __future__ import annotations

from typing import Any

from invoke.context import Context

from ci_tasks.commands.common import HOST, JSON, REPO, command, finish, print_json


@command(help={"json": JSON})
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
            print_json(found)
        else:
            head = ("HOST", "KIND", "ADDRESS", "RUNTIME", "GPUS")
            body = [(h["name"], h["kind"], h["address"] or "-", h["runtime"], _gpus(h)) for h in found]
            print("\n".join([f"from {config.file}", *columns([head, *body])]))
        return 0

    finish(flow)


def _gpus(host: dict[str, Any]) -> str:
    count = "as found" if host["gpus"] is None else str(host["gpus"])
    return f"{count} (pretend)" if host["simulate"] else count


@command(help={"host": f"{HOST} (else all of them)", "repo": f"{REPO}: its images are looked for", "json": JSON})
def doctor(c: Context, host: str = "", repo: str = "", json: bool = False) -> None:
    """Say what a host lacks, each fault with the next step.

    invoke doctor --host h100a            changes nothing there
    invoke doctor --host local --json     with the raw answers of the host's programs
    """

    def flow() -> int:
        from ci_tasks.flows.boxes import open_asker
        from ci_tasks.flows.doctor import doctor
        from ci_tasks.flows.listing import images
        from ci_tasks.flows.source import open_config, open_source

        found = images(open_source(repo or None))
        return doctor(open_config(), host or None, as_json=json, images=found, open_asker=open_asker)

    finish(flow)


@command(
    help={
        "host": f"{HOST} (default: local)",
        "days": "runs over for so many days go: of other hosts somebody else's (default: 14), here all",
        "all": "also what was kept with --keep, and runs that are not home yet",
    }
)
def clean(c: Context, host: str = "local", days: str = "", all: bool = False) -> None:
    """Remove what runs have left on a host.

    invoke clean --host h100a             a run that goes on is never touched
    invoke clean --days 30                the run directories here that are older
    """

    def flow() -> int:
        from ci_tasks.errors import UsageError
        from ci_tasks.flows.cleaning import clean
        from ci_tasks.flows.source import open_config

        if days and not days.replace(".", "", 1).isdigit():
            raise UsageError(f"--days is a number of days, not {days!r}")
        return clean(open_config(), host, days=float(days) if days else None, everything=all)

    finish(flow)
