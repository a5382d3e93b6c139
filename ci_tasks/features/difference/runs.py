"""A run as one side of a comparison: what was seen of its inputs.

An axis that was not noted is left out, so that it counts as not seen. Of the environment the variables of the plan are
read: those of the machine are none of the row's inputs. Paths and names that every run has of its own are replaced.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.files import open_file
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.errors import UsageError
from ci_tasks.features.difference.values import Values, read_values
from ci_tasks.records import RunRecord
from ci_tasks.registry import metric_formats
from ci_tasks.results.index import passed_runs
from ci_tasks.results.load import find_one, load_record

# Axes, those first that explain a difference more often.
COMMIT, OVERLAYS, IMAGE, PACKAGES, ARGUMENTS, ENV = "commit", "overlays", "image", "packages", "arguments", "env"
AXES = (COMMIT, OVERLAYS, IMAGE, PACKAGES, ARGUMENTS, ENV, "machine", "deviations")
# Deviations that other axes tell better, and the container's name, which each run has its own of.
_COVERED = ("code", "Python packages", "GPUs", "pull request", "image", "name")
_MOST_PASSED = 50  # of a row, among which the last one before the run is searched for


@dataclass(frozen=True)
class RunSide:
    """`plan` is None for a run that another client began: what its host claims has no environment."""

    record: RunRecord
    plan: Plan | None
    log: str

    @property
    def logged(self) -> Values:
        """What the log prints of results, by rank; nothing if there is no log. Raises OSError."""
        if not os.path.exists(self.log):
            return {}
        with open_file(self.log) as lines:
            return read_values(lines, metric_formats())

    def inputs(self) -> dict[str, Mapping[str, str]]:
        """What was seen of each axis, by name."""
        record, plan, around, checkout = self.record, self.plan, self.record.environment, self.record.checkout
        found: dict[str, Mapping[str, str]] = {}
        if checkout is not None:
            found[COMMIT] = {"commit": checkout.title, "tree": (checkout.own_tree or checkout.tree)[:12]}
            found[OVERLAYS] = {each.name: f"{each.title} {each.tree[:12]}" for each in checkout.overlays}
        if image := around.digest or ("no container" if around.runtime == "none" else ""):
            found[IMAGE] = {"image": image}
        if around.packages:
            found[PACKAGES] = {"Python": around.python or "", **self._without_own(around.packages)}
        if plan is not None:
            found[ENV] = self._without_own({**plan.env, **plan.host_env})
            found[ARGUMENTS] = {"test": plan.test or "none", "arguments": plan.args}
        gpus = Counter(gpu.name for gpu in around.gpus)
        words = ", ".join(f"{count} x {name}" for name, count in gpus.items())
        machine = {"host": record.host or "local", "GPUs": words}
        found["machine"] = {**machine, "driver": around.driver or "", "kernel": around.kernel or ""}
        deviations = {each.what: each.here for each in record.deviations if each.what not in _COVERED}
        return {**found, "deviations": self._without_own(deviations)}

    def _without_own(self, values: Mapping[str, str]) -> dict[str, str]:
        """Values without what is this run's alone."""
        record, checkout = self.record, self.record.checkout
        own = [(record.id, "RUN"), (record.id.rpartition(".")[0], "RUN")]
        own += [(self.plan.workspace, "WORKSPACE")] if self.plan else []
        commits = (checkout.commit, checkout.head) if checkout else ()
        own += [(commit[:length], "COMMIT") for commit in commits for length in (40, 7)]
        found = dict(values)
        for text, name in own:
            found = {key: value.replace(text, name) if text else value for key, value in found.items()}
        return found


def one_side(name: str) -> RunSide:
    """Raises UsageError, Blocked."""
    return _side(find_one(name)[1])


def last_passed(run: RunSide) -> RunSide:
    """The newest run of its row that passed and began before it, on any host. Raises UsageError."""
    asked = run.record
    for directory in passed_runs(asked.label, asked.row, _MOST_PASSED):
        record = load_record(directory)
        if record.id != asked.id and (record.started_at or "") < (asked.started_at or "~"):
            return _side(directory)
    hint = "name the other run: `ci-tasks runs` lists them"
    raise UsageError(f"no run of {asked.row} that passed before {asked.id} is kept", hint=hint)


def _side(run: RunDir) -> RunSide:
    try:
        plan = read_plan(run) if os.path.exists(run.plan) else None
    except (OSError, RecordError):
        plan = None
    return RunSide(load_record(run), plan, run.log)
