"""The command `doctor`: queries hosts and prints what is wrong there, with the next step for each fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import HOST, JSON, REPO, WORKFLOW
from ci_tasks.cli.shared import print_result
from ci_tasks.config import HostSpec
from ci_tasks.errors import EXIT_BLOCKED, CheckoutError, CiTasksError
from ci_tasks.features.doctor import basics
from ci_tasks.features.doctor.check_results import FAULT, Answers, Check, CheckResult, fault, lines, ok, summary
from ci_tasks.features.doctor.containers import containers
from ci_tasks.features.doctor.gpus import gpus
from ci_tasks.hosts.mux import kept_connections
from ci_tasks.hosts.queries import QueryRunner
from ci_tasks.hosts.runs import open_connection
from ci_tasks.results import store
from ci_tasks.run.checkout_source import open_source
from ci_tasks.run.find_rows import list_jobs
from ci_tasks.run.hosts_files import open_config
from ci_tasks.safe_output import terminal_width

OpenQueryRunner = Callable[[HostSpec], AbstractContextManager[QueryRunner]]
QUERY_TIMEOUT = 20.0  # seconds for each request; a cold driver takes several


@dataclass(frozen=True)
class DoctorOptions:
    host: str | None = HOST.field(help="a host or a pool of hosts.yaml; several with commas (default: all)")
    repo: str | None = REPO.field(help=f"{REPO.help}; its images are checked")
    workflow: str | None = WORKFLOW.field()
    json: bool = JSON.field()


def doctor(options: DoctorOptions) -> int:
    """
    ci-tasks doctor --host h100a            changes nothing there
    ci-tasks doctor --host local --json
    """
    config, images, results = open_config(options.repo), dict[str, None](), list[HostResult]()
    with nullcontext() if options.repo or options.workflow else suppress(CheckoutError):  # hosts are looked at anywhere
        source = open_source(options.repo, None, options.workflow)
        images = dict.fromkeys(row.image for row in list_jobs(source) if row.image and not source.sample)
    for host in config.select_hosts(options.host) if options.host else config.hosts.values():
        found = examine_host(host, [*images], lambda host: closing(open_connection(host)))
        if not options.json:
            title = f"{host.name} ({', '.join(part for part in (host.kind, host.address, host.runtime) if part)})"
            print("\n".join(lines(title, found, terminal_width())), end="\n\n", flush=True)
        results += found
    print_result(results, lambda: [summary(results)], as_json=options.json)
    return EXIT_BLOCKED if any(result.status == FAULT for result in results) else 0


@dataclass(frozen=True)
class HostResult(CheckResult):
    """An entry of `doctor --json`: a result and its host."""

    host: str = ""


def examine_host(host: HostSpec, images: Sequence[str], open_query_runner: OpenQueryRunner) -> list[HostResult]:
    """All results of one host. That it cannot be reached is a result too."""
    results: list[HostResult] = []
    try:
        with open_query_runner(host) as runner:
            checks = [(check, next(check)) for check in _checks(host, images)]
            asked = {name: argv for _, queries in checks for name, argv in queries.items()}
            before = time.time()
            answers = runner.run_queries({**basics.CLOCK_QUERY, **asked}, QUERY_TIMEOUT)
            skew = basics.read_clock(answers["clock"], before, time.time())
            results += _of_host(host, [*_connection(host), skew])
            for check, _ in checks:
                results += _of_host(host, finished(check, answers))
    except CiTasksError as error:
        results.append(HostResult("SSH", FAULT, error.message, error.hint, host.name))
    return results


def _of_host(host: HostSpec, results: Sequence[CheckResult]) -> list[HostResult]:
    return [HostResult(**vars(result), host=host.name) for result in results]


def _connection(host: HostSpec) -> list[CheckResult]:
    if host.kind == "local":
        return []
    kept = any(each.address == (host.address or host.name) for each in kept_connections())
    return [ok("SSH", f"connected to {host.address}{'; the connection is kept' if kept else ''}")]


def _checks(host: HostSpec, images: Sequence[str]) -> list[Check]:
    disks = basics.disks(host, str(store.home()) if host.kind == "local" else host.workspace)
    if host.kind == "slurm":  # of docker, podman and apptainer a login node says nothing that counts
        pyxis = [containers(host, ())] if host.runtime == "pyxis" else []
        return [basics.programs(), basics.slurm(host), *pyxis, disks]
    runtime = [containers(host, images)] if host.runtime != "none" else []
    # The sample, for which simulated GPUs are, downloads nothing.
    return [basics.programs(), *runtime, gpus(host), disks, *([] if host.simulate else [basics.hub(host)])]


def finished(check: Check, answers: Answers) -> list[CheckResult]:
    """The results of a check with these answers; also for one that the program itself would not give."""
    try:
        check.send(answers)
    except StopIteration as end:
        return list(end.value)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return [fault("SSH", f"an answer cannot be read: {error!r}", "run its program there and read its output")]
    raise AssertionError("a check asks once")
