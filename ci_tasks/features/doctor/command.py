"""The command `doctor`."""

from __future__ import annotations

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import HOST, JSON, REPO, WORKFLOW
from ci_tasks.cli.shared import print_result


@dataclass(frozen=True)
class DoctorOptions:
    host: str | None = HOST.field(help="a host of hosts.yaml (else all of them)", commas=False)
    repo: str | None = REPO.field(help=f"{REPO.help}; its images are checked")
    workflow: str | None = WORKFLOW.field()
    json: bool = JSON.field()


def doctor(options: DoctorOptions) -> int:
    """
    ci-tasks doctor --host h100a            changes nothing there
    ci-tasks doctor --host local --json
    """
    from contextlib import closing

    from ci_tasks.errors import EXIT_BLOCKED
    from ci_tasks.features.doctor.check_results import FAULT, lines, summary
    from ci_tasks.features.doctor.examine import examine_host
    from ci_tasks.hosts.runs import open_connection
    from ci_tasks.run.checkout_source import open_source
    from ci_tasks.run.find_rows import images
    from ci_tasks.run.hosts_files import open_config
    from ci_tasks.safe_output import terminal_width

    source, config, results = open_source(options.repo, None, options.workflow), open_config(options.repo), []
    for host in [config.host(options.host)] if options.host else config.hosts.values():
        found = examine_host(host, images(source), lambda host: closing(open_connection(host)))
        if not options.json:
            title = f"{host.name} ({', '.join(part for part in (host.kind, host.address, host.runtime) if part)})"
            print("\n".join(lines(title, found, terminal_width())), end="\n\n", flush=True)
        results += found
    print_result(results, lambda: [summary(results)], as_json=options.json)
    return EXIT_BLOCKED if any(result.status == FAULT for result in results) else 0
