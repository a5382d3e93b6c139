"""Which hosts can run a row, which waiting rows start now and where, how long rows are expected to take; and what Slurm
decides instead of a host, with the batch script that asks for it.

Placing is list scheduling: the row with most work (GPUs times expected seconds) is looked at first, and each row starts
as soon as a host has room for it: the one with the fewest GPUs left over. Nothing is planned ahead, so a wrong estimate
costs little.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import JOB, SLURM, Deviation, GpuRequest, Plan
from ci_tasks.config import HostSpec
from ci_tasks.errors import counted
from ci_tasks.planning.deviations import LOCKS
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.runner import LOCK_SCRIPT


@dataclass(frozen=True)
class WaitingRow:
    """A row that waits or runs. `seconds` is how long it is expected to take. Two rows with one name in `exclusive`
    never share a host. `hosts`: where it may run."""

    name: str
    gpus: int
    seconds: float
    hosts: frozenset[str]
    exclusive: frozenset[str] = frozenset()


@dataclass(frozen=True)
class HostLoad:
    """A host at this moment. `slots` is the maximum of its rows, `rows` their number, `held` the number of GPUs that
    others hold. A host that is not `up` gets no new row."""

    name: str
    gpus: int
    slots: int
    held: int = 0
    up: bool = True
    rows: tuple[WaitingRow, ...] = ()

    @property
    def free_gpus(self) -> int:
        """Fewer than none if a row waits for others' GPUs."""
        return self.gpus - self.held - sum(row.gpus for row in self.rows)

    def can_hold(self, row: WaitingRow) -> bool:
        return self.name in row.hosts and self.up and self.gpus >= row.gpus

    def why_not(self, row: WaitingRow) -> str:
        """What the row waits for there; "" for nothing."""
        for other in self.rows:
            if shared := sorted(row.exclusive & other.exclusive):
                return f"it cannot run beside {other.name} on {self.name} ({', '.join(shared)})"
        if len(self.rows) >= self.slots:
            return f"{self.name} runs {counted(self.slots, 'row')} at once"
        held = f", with {self.held} held by others" if self.held else ""
        if row.gpus and self.free_gpus < row.gpus:
            return f"it needs {counted(row.gpus, 'GPU')}, and {self.name} has {max(self.free_gpus, 0)} free{held}"
        return ""

    def has_only_others(self, row: WaitingRow) -> bool:
        """Whether the row waits for GPUs of others alone."""
        is_alone = not any(other.gpus or row.exclusive & other.exclusive for other in self.rows)
        return is_alone and self.held > 0 and len(self.rows) < self.slots


Durations = Mapping[str, float]  # seconds that rows took before, by row


def expected_seconds(row: str, durations: Durations, gpus: int) -> float:
    """How long `row` is expected to take, by the times of rows that ran. A mode of a test that never ran (`test[mode]`)
    is taken to last as long as the other modes did. slime's CPU rows took 0.1 to 217 s; its GPU rows take minutes to
    tens of minutes, those on many GPUs longer."""
    test = row.partition("[")[0]
    siblings = sorted(seconds for name, seconds in durations.items() if name.partition("[")[0] == test)
    guess = 300.0 + 75.0 * gpus if gpus else 30.0
    return durations.get(row, siblings[len(siblings) // 2] if siblings else guess)


def place(waiting: Sequence[WaitingRow], loads: Sequence[HostLoad]) -> tuple[dict[int, str], dict[int, str]]:
    """The host of each `waiting` row that starts now, by its position, and why each other row waits. The answer depends
    on the arguments only. Ask again when a row has ended or begins to wait, a host goes or comes, or others take or
    release GPUs."""
    hosts = {load.name: load for load in loads}
    starts, waits = dict[int, str](), dict[int, str]()
    for at in sorted(range(len(waiting)), key=lambda at: -waiting[at].seconds * max(waiting[at].gpus, 1)):
        row = waiting[at]
        able = [host for host in hosts.values() if host.can_hold(row)]
        free = [host for host in able if host.why_not(row) == ""]
        if not free and all(host.has_only_others(row) for host in able):
            free = able  # there it waits for GPUs that others hold, and may release at any moment
        if free:
            host = min(free, key=lambda host: host.free_gpus - row.gpus)
            starts[at] = host.name
            hosts[host.name] = replace(host, rows=(*host.rows, row))
        else:
            waits[at] = able[0].why_not(row) if able else f"not ready, or away: {', '.join(sorted(row.hosts))}"
    return starts, waits


# -- what a host can run -----------------------------------------------------------------------------------------------

# `requires-python` of pyproject.toml, `python_requires` of setup.cfg and setup.py
_FILES = ("pyproject.toml", "setup.cfg", "setup.py")
_REQUIREMENT = re.compile(r"""^\s*(?:requires-python|python_requires)\s*=\s*["']?([^"'#\n]+)""", re.MULTILINE)


@dataclass(frozen=True)
class HostFacts:
    """What was found on a host. On a cluster, `gpus` are the GPUs of one node. `container_problem` says why its runtime
    cannot start one, `python_problem` why the Python that rows would get there is none for the checkout,
    `scheduler_problem` why Slurm takes no job; empty when it can, and is."""

    gpus: int = 0
    gpu_problem: str = ""
    container_problem: str = ""
    simulates: bool = True
    python_problem: str = ""
    scheduler_problem: str = ""


def missing_resources(row: Row, host: HostSpec, facts: HostFacts) -> list[str]:
    """What `row` needs and `host` does not have; empty when it can run there."""
    if facts.scheduler_problem:
        return [f"Slurm ({facts.scheduler_problem})"]
    if host.simulate and row.needed_gpus and not facts.simulates:
        # The lock script must take its files from CI_TASKS_GPU_LOCK_DIR, or the rows would take the real locks.
        return ["GPUs for this checkout: simulated ones serve the sample only"]
    missing = [facts.container_problem if row.image else "", facts.python_problem]
    if row.needed_gpus > facts.gpus:
        found = f"found {facts.gpus}" + (f": {facts.gpu_problem}" if facts.gpu_problem else "")
        found += "; the number is its runner's: --gpus 0 if its tests need none" if row.gpus_of_runner else ""
        missing.insert(0, f"{row.needed_gpus} GPUs{' on one node' if host.kind == 'slurm' else ''} ({found})")
    return [each for each in missing if each]


def other_hosts(row: Row, hosts: Mapping[str, HostSpec], here: str, simulates: bool) -> list[str]:
    """The hosts of hosts.yaml that could run `row`, each with its resources."""
    usable = [host for host in hosts.values() if (simulates if host.simulate else host.kind != "local")]
    able = [host for host in usable if host.name != here and (host.gpus is None or host.gpus >= row.needed_gpus)]
    return [f"{host.name} ({_resources_of(host)})" for host in able]


def _resources_of(host: HostSpec) -> str:
    if host.simulate:
        return f"{host.gpus} simulated GPUs"
    gpus = "GPUs unknown" if host.gpus is None else f"{host.gpus} GPUs{' a node' if host.kind == 'slurm' else ''}"
    return f"{host.kind} {host.address}, {gpus}"


def requires_python(read_file: Callable[[str], str | None]) -> str:
    """The checkout's own version specifier, such as `>=3.10`; empty if it names none."""
    texts = (read_file(name) or "" for name in _FILES)
    return next((found[1].strip() for text in texts if (found := _REQUIREMENT.search(text))), "")


def python_problem(requirement: str, version: str) -> str:
    """What is wrong with a Python of `version`; empty if nothing is, or if that is not known."""
    if not requirement or not version:
        return ""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        fits = SpecifierSet(requirement).contains(version, prereleases=True)
    except (InvalidSpecifier, ValueError):
        return ""
    needs = f"Python {requirement}, as the checkout requires"
    return "" if fits else f"{needs} (found {version}: `python3`, or ci-tasks' own)"


# -- Slurm -------------------------------------------------------------------------------------------------------------

# Minutes between the row's own timeout and Slurm's limit: the runner ends the job, collects and says how it ended.
GRACE = 5
_LOCK_SCRIPT = re.compile(rf"[\w./-]*{LOCK_SCRIPT}\.py")


def on_slurm(plan: Plan) -> Plan:
    """The plan of a row that Slurm places: it gives the GPUs, in the place of lock files, and keeps rows apart that
    cannot share a node. A plan that is so already stays as it is."""
    if plan.gpu_locks is None or plan.gpu_locks.by == SLURM:
        return replace(plan, exclusive=())
    match = _LOCK_SCRIPT.search(plan.script) if plan.gpu_locks.by == JOB else None
    script = match[0].removeprefix("./") if match else None
    locks = GpuRequest(count=plan.gpus, by=SLURM, script=script, exclusive_node=bool(plan.exclusive))
    kept = tuple(deviation for deviation in plan.deviations if deviation.what != LOCKS)
    return replace(plan, gpu_locks=locks, exclusive=(), deviations=(*kept, *_slurm_deviations(locks)))


def within_limit(plan: Plan, limit: float | None, host: HostSpec) -> Plan:
    """The plan with a timeout that its partition allows: a job that asks for more would wait for ever."""
    minutes = plan.timeout_minutes if limit is None else max(limit - GRACE, limit / 2)
    if limit is None or plan.timeout_minutes <= minutes:
        return plan
    where = f"partition {host.partition}" if host.partition else "the default partition"
    why = f"{where} of {host.name} runs jobs for {limit:g} min at most"
    deviation = Deviation("time limit", f"{plan.timeout_minutes:g} min", f"{minutes:g} min", why)
    return replace(plan, timeout_minutes=minutes, deviations=(*plan.deviations, deviation))


def batch_script(plan: Plan, host: HostSpec, limit: float | None) -> str:
    """The text of the batch script of a row's plan. hosts.yaml's own options come last, so that they win over ours.
    `limit` is the longest that a job may ask for, in minutes; None if there is no limit."""
    minutes = math.ceil(plan.timeout_minutes) + GRACE
    if limit is not None:
        minutes = min(minutes, max(1, math.floor(limit)))
    locks = on_slurm(plan).gpu_locks
    named = (("partition", host.partition), ("account", host.account), ("qos", host.qos))
    options = [
        "--job-name=ci-tasks",
        *(f"--{name}={value}" for name, value in named if value),
        *("--nodes=1", "--ntasks=1"),
        *([f"--gres={host.gres or 'gpu'}:{plan.gpus}"] if plan.gpus else []),
        *(["--exclusive"] if locks is not None and locks.exclusive_node else []),
        *(f"--time={minutes}", "--requeue", "--open-mode=append"),
        *host.sbatch,
    ]
    lines = "\n".join(f"#SBATCH {shlex.quote(option)}" for option in options)
    return f"""#!/bin/bash
# What ci-tasks submits to {host.name}; the row itself is run.sh of its run directory.
# By hand: sbatch batch.sh RUN_DIR
{lines}
run_dir=${{1:?the run directory}}
# It becomes the runner, so that Slurm's signals reach it and its exit code is the job's.
exec python3 -I "$run_dir/bin/agent.pyz" batch "$run_dir"
"""


def _slurm_deviations(locks: GpuRequest) -> Iterator[Deviation]:
    if locks.script:
        here = f"the GPUs that Slurm gave; {locks.script} is replaced in the run's checkout by one that takes these"
        yield Deviation(LOCKS, "one lock file per GPU", here, "its locks do not cover other jobs on the node")
    else:
        yield Deviation(LOCKS, "none in the row's steps", "the GPUs that Slurm gave", "Slurm keeps other jobs away")
    if locks.exclusive_node:
        why = "two rows with Ray on one network use the same ports"
        yield Deviation("node", "shared with other rows", "the row's alone (--exclusive)", why)
