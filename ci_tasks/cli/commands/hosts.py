"""Commands about hosts: `hosts`, `clean`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ci_tasks.cli.options import HOST, JSON, Option, switch
from ci_tasks.cli.output import print_json

if TYPE_CHECKING:
    from ci_tasks.run.listing import ListedHost


@dataclass(frozen=True)
class HostsOptions:
    json: bool = JSON.field()


def hosts(options: HostsOptions) -> int:
    """
    ci-tasks hosts                    the file that is read, and its hosts
    CI_TASKS_HOSTS=mine.yaml ci-tasks hosts
    """
    from ci_tasks.report.table import columns
    from ci_tasks.run.checkout_source import open_config
    from ci_tasks.run.listing import list_hosts

    config = open_config()
    listed = list_hosts(config)
    if options.json:
        print_json([asdict(host) for host in listed])
    else:
        head = ("HOST", "KIND", "ADDRESS", "RUNTIME", "GPUS")
        body = [(host.name, host.kind, host.address or "-", host.runtime, _gpus(host)) for host in listed]
        print("\n".join([f"from {config.file}", *columns([head, *body])]))
    return 0


def _gpus(host: ListedHost) -> str:
    count = "as found" if host.gpus is None else str(host.gpus)
    return f"{count} (simulated)" if host.simulate else count


@dataclass(frozen=True)
class CleanOptions:
    host: str = HOST.field(default="local", commas=False)
    days: float | None = Option(
        "remove runs older than this: on other hosts those of other people (else 14), here all",
        float,
        None,
        "N",
        "days",
    ).field()
    all: bool = switch("also remove what --keep kept, and runs whose results are not fetched").field()


def clean(options: CleanOptions) -> int:
    """
    ci-tasks clean --host h100a           running rows are never touched
    ci-tasks clean --days 30              older run directories on this machine
    """
    from ci_tasks.run.checkout_source import open_config
    from ci_tasks.run.clean import clean

    return clean(open_config(), options.host, days=options.days, everything=options.all)
