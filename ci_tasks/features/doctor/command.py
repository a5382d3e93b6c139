"""The command `doctor`."""

from __future__ import annotations

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import HOST, JSON, REPO


@dataclass(frozen=True)
class DoctorOptions:
    host: str | None = HOST.field(help="a host of hosts.yaml (else all of them)", commas=False)
    repo: str | None = REPO.field(help=f"{REPO.help}; its images are checked")
    json: bool = JSON.field()


def doctor(options: DoctorOptions) -> int:
    """
    ci-tasks doctor --host h100a            changes nothing there
    ci-tasks doctor --host local --json     with the raw answers of the host's programs
    """
    from ci_tasks.features.doctor.examine import run_doctor
    from ci_tasks.hosts.run_manager import open_query_runner
    from ci_tasks.run.checkout_source import open_source
    from ci_tasks.run.find_rows import images
    from ci_tasks.run.hosts_files import open_config

    source = open_source(options.repo)
    return run_doctor(
        open_config(options.repo),
        options.host,
        as_json=options.json,
        images=images(source),
        open_query_runner=open_query_runner,
    )
