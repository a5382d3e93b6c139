"""Whether rows fail more often on this host, or one of its GPUs, than elsewhere: by the history of runs, not by a
query."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.errors import counted
from ci_tasks.features.doctor.check_results import CheckResult, ok, warning
from ci_tasks.results.machines import MachineRun, suspects

TOPIC = "failures here"


def results(host: str, runs: Sequence[MachineRun]) -> list[CheckResult]:
    """A warning for each GPU of the host, or the host itself, that is worse than its peers; nothing where no row has
    run there."""
    here = [run for run in runs if run.machine.partition("/")[0] == host]
    if not here:
        return []
    named = [suspect for suspect in suspects(runs) if suspect.machine.partition("/")[0] == host]
    if not named:
        return [ok(TOPIC, f"no GPU is worse than its peers in {counted(len(here), 'run')}")]
    found = []
    for suspect in named:
        own = [run for run in here if suspect.is_in(run)]
        share = f"{sum(run.failed for run in own)} of {len(own)} runs failed"
        found.append(
            warning(
                TOPIC,
                f"{suspect.name}: {share}, more than the same rows elsewhere (by chance: p = {suspect.p:.1g})",
                f"`ci-tasks runs --machines --host {host}`; `nvidia-smi -q` there has its counters",
            )
        )
    return found
