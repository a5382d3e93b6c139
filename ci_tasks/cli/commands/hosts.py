"""Commands about hosts: `hosts`, `clean`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import HOST, JSON, REPO, Option, switch
from ci_tasks.cli.output import people_read_stderr, print_json
from ci_tasks.errors import EXIT_BLOCKED, printable

if TYPE_CHECKING:
    from ci_tasks.run.hosts_files import ListedHost


_DAYS = "remove runs older than this: on other hosts those of other people (else 14), here all"
_ALL = "also remove what --keep kept, runs whose results are not fetched, and packages that runs share"


@dataclass(frozen=True)
class HostsOptions:
    json: bool = JSON.field()
    trust: bool = switch(
        "let the overrides of the checkout's own hosts.yaml count, as long as it does not change",
        excludes=(("json", "it prints the file", ""),),
    ).field()
    repo: str | None = REPO.field()


def hosts(options: HostsOptions) -> int:
    """
    ci-tasks hosts                    hosts and overrides, and the files that they come from
    ci-tasks hosts --json             with file and line of each key
    CI_TASKS_HOSTS=mine.yaml ci-tasks hosts
    ci-tasks hosts --trust            for a hosts.yaml that is part of the checkout
    """
    from ci_tasks.report.table import Table
    from ci_tasks.run.hosts_files import list_hosts, open_config, trust
    from ci_tasks.safe_output import terminal_width

    if options.trust:
        file, text = trust(options.repo)
        shown = printable(text.replace("\r\n", "\n").rstrip())  # a carriage return could hide a line of it
        print(f"{shown}\n\ntrusted: {file}, until its content changes; only its overrides count")
        return 0
    config = open_config(options.repo)
    listed = list_hosts(config)
    if options.json:
        print_json([asdict(host) for host in listed])
        return 0
    body = [(host.name, host.kind, host.address or "-", host.runtime, _gpus(host), _files(host)) for host in listed]
    lines = Table(body, ("HOST", "KIND", "ADDRESS", "RUNTIME", "GPUS", "FROM")).text(terminal_width())
    for host in listed:
        if host.kept is not None:
            closes = f"`ci-tasks clean --host {host.name}` closes it"
            lines.append(f"{host.name}: process {host.kept.pid} keeps a connection; {closes}")
    keys = ("run", "skip", "with_", "pip_index", "replace")
    overrides = [
        (each.job, each.step, ", ".join(key.rstrip("_") for key in keys if getattr(each, key)), each.source)
        for each in config.overrides
    ]
    if overrides:
        lines += ["", *Table(overrides, ("OVERRIDE OF JOB", "STEP", "CHANGES", "FROM")).text(terminal_width())]
    print("\n".join(lines))
    return 0


def _files(host: ListedHost) -> str:
    """The files that its keys come from; `--json` has each key's line."""
    return ", ".join(dict.fromkeys(source.rpartition(":")[0] or source for source in host.sources.values()))


def _gpus(host: ListedHost) -> str:
    count = "as found" if host.gpus is None else str(host.gpus)
    return f"{count} (simulated)" if host.simulate else count


@dataclass(frozen=True)
class CleanOptions:
    host: str = HOST.field(default="local", commas=False)
    days: float | None = Option(_DAYS, float, None, "N", "days").field()
    all: bool = switch(_ALL).field()
    json: bool = JSON.field()


def clean(options: CleanOptions) -> int:
    """
    ci-tasks clean --host h100a           running rows are never touched
    ci-tasks clean --days 30              older run directories on this machine
    """
    from ci_tasks.run.clean import clean
    from ci_tasks.run.hosts_files import open_config

    with people_read_stderr(options.json):
        cleaned = clean(open_config(), options.host, days=options.days, everything=options.all)
    if options.json:
        print_json([encode(run) for run in cleaned])
    return EXIT_BLOCKED if any(run.left for run in cleaned) else 0
