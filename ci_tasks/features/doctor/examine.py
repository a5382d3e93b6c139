"""`doctor`: queries hosts and prints what is wrong there, with the next step for each fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import HostSpec
from ci_tasks.errors import CiTasksError
from ci_tasks.features.doctor import basics
from ci_tasks.features.doctor.basics import hub, slurm
from ci_tasks.features.doctor.check_results import FAULT, Answers, Check, CheckResult, fault, ok
from ci_tasks.features.doctor.containers import containers
from ci_tasks.features.doctor.gpus import gpus
from ci_tasks.hosts.mux import kept_connections
from ci_tasks.hosts.queries import QueryRunner
from ci_tasks.results import store

OpenQueryRunner = Callable[[HostSpec], AbstractContextManager[QueryRunner]]
QUERY_TIMEOUT = 20.0  # seconds for each request; a cold driver takes several


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
        return [basics.programs(), slurm(host), *([containers(host, ())] if host.runtime == "pyxis" else []), disks]
    runtime = [containers(host, images)] if host.runtime != "none" else []
    # The sample, for which simulated GPUs are, downloads nothing.
    return [basics.programs(), *runtime, gpus(host), disks, *([] if host.simulate else [hub(host)])]


def finished(check: Check, answers: Answers) -> list[CheckResult]:
    """The results of a check with these answers; also for one that the program itself would not give."""
    try:
        check.send(answers)
    except StopIteration as end:
        return list(end.value)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return [fault("SSH", f"an answer cannot be read: {error!r}", "run its program there and read its output")]
    raise AssertionError("a check asks once")
