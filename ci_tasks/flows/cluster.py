"""A Slurm cluster as a site: its login node is spoken to as a box is, and Slurm decides where and when a row runs.

The workspace of hosts.yaml lies on the file system that login and compute nodes share: checkouts, logs and what a run
leaves are read there, by the login node, whichever node writes them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci_tasks.flows.site import Look, Prepared
from ci_tasks.flows.there import There
from ci_tasks.hosts.errand import Errand
from ci_tasks.model import HostSpec, Plan
from ci_tasks.plan import sbatch
from ci_tasks.plan.capacity import HostFacts
from ci_tasks.runner.layout import RunDir
from ci_tasks.runner.slurm.job import REJECTED, SCRIPT


class Cluster(There):
    """See ci_tasks.flows.site.Site."""

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(spec)
        self._said: set[str] = set()

    @property
    def queues(self) -> bool:
        return True

    def facts(self, *, gpus: int, container: bool, simulates: bool) -> HostFacts:
        """`gpus` of the result are those of one node: how many nodes have them free is Slurm's business."""
        found = super().facts(gpus=gpus, container=container, simulates=simulates)
        if found.gpus < gpus and not found.gpu_problem:
            return replace(found, gpu_problem="no node has more, and a row over several nodes needs --nodes")
        return found

    def write(self, run: RunDir, plan: Plan) -> None:
        plan = sbatch.on_slurm(plan)
        super().write(run, plan)
        text = sbatch.script(self.spec, sbatch.want(plan, self.spec, plan.nodes))
        Path(run.path, SCRIPT).write_text(text, encoding="utf-8", newline="\n")

    def begin(self, row: Prepared) -> None:
        super().begin(replace(row, plan=sbatch.on_slurm(row.plan)))

    def look(self, row: Prepared) -> Look:
        """A row has begun as soon as Slurm has it: from then on nobody of us is needed."""
        found, errand = super().look(row), self._errands.get(row.run.path)
        has = errand is not None and errand.mirror is not None and bool(errand.mirror.status.get("slurm"))
        return found if found.over or found.never or has else replace(found, begun=False)

    def told(self) -> list[str]:
        """What the link says, and once for each reason that rows could not be submitted yet."""
        lines, mirrors = super().told(), [errand.mirror for errand in self._errands.values()]
        waiting = [str(text) for mirror in mirrors if mirror for text in mirror.status.get("waiting") or ()]
        reasons = Counter(text.rpartition(";")[0] for text in waiting if text.startswith(REJECTED))
        for why in set(reasons) - self._said:
            many = f"{reasons[why]} row{'' if reasons[why] == 1 else 's'}"
            lines.append(f"{self.spec.name}: {why}; {many} will be offered again, with growing pauses")
        self._said |= set(reasons)
        return lines

    def _begin(self, errand: Errand) -> None:
        errand.batch = self._script(errand)
        super()._begin(errand)

    def _script(self, errand: Errand) -> str:
        """What is shown is what runs: the text beside the plan. Install steps have none yet."""
        path = Path(errand.run.path, SCRIPT)
        if not path.exists():
            plan: Any = errand.plan
            text = sbatch.script(self.spec, sbatch.Want(plan["timeout_minutes"]))
            path.write_text(text, encoding="utf-8", newline="\n")
        return path.read_text(encoding="utf-8")
