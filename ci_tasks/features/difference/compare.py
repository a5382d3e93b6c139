"""Two runs → what went in differently, and what came out differently.

`old` is the earlier state, `new` the one that is asked about. Of inputs, an axis that was not noted is left out, so
that it counts as not seen; of the environment only the plan's variables are read: the machine's variables are no inputs
of the row. Paths and names that every run has of its own are replaced. Metrics of one step are compared bit for bit.
Whether a difference is more than scatter is not decided here: one run of a side shows none.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from ci_tasks.agent.codec import RecordError
from ci_tasks.agent.files import open_file
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Plan
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.errors import UsageError, one_line, short, some
from ci_tasks.features.difference.values import ValueDifference, Values, compare_values, of_lowest_rank, read_values
from ci_tasks.records import FAILED, PASSED, RunRecord
from ci_tasks.registry import metric_formats
from ci_tasks.report.table import Table, paragraph
from ci_tasks.results import history
from ci_tasks.results.index import passed_runs
from ci_tasks.results.load import find_one, load_record
from ci_tasks.safe_output import MASK, is_private

# Axes, those first that explain a difference more often.
COMMIT, OVERLAYS, IMAGE, PACKAGES, ARGUMENTS, ENV = "commit", "overlays", "image", "packages", "arguments", "env"
AXES = (COMMIT, OVERLAYS, IMAGE, PACKAGES, ARGUMENTS, ENV, "machine", "deviations")
# Deviations that other axes tell better, and the container's name, which each run has its own of.
_COVERED = ("code", "Python packages", "GPUs", "pull request", "image", "name")
_MOST_PASSED = 50  # of a row, among which the last one before the run is searched for
NO_VALUE = "–"  # a name that one side does not have
_HASH = re.compile(r"[0-9a-f]{40,64}")


# -- a run as one side -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunSide:
    """`plan` is None for a run that another client began: what its host claims has no environment."""

    record: RunRecord
    plan: Plan | None
    log: str

    @property
    def logged(self) -> Values:
        """What the log prints of results, by rank; nothing if there is no log. Raises OSError."""
        with suppress(FileNotFoundError), open_file(self.log) as lines:
            return read_values(lines, metric_formats())
        return {}

    def inputs(self) -> dict[str, Mapping[str, str]]:
        """What was seen of each axis, by name."""
        record, plan, around, checkout = self.record, self.plan, self.record.environment, self.record.checkout
        found: dict[str, Mapping[str, str]] = {}
        if checkout is not None:
            dirty = {"changed files": some(checkout.dirty, 5)} if checkout.dirty else {}
            found[COMMIT] = {"commit": checkout.title, "tree": short(checkout.own_tree or checkout.tree), **dirty}
            found[OVERLAYS] = {each.name: f"{each.title} {short(each.tree)}" for each in checkout.overlays}
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
        own += [(text, "COMMIT") for commit in commits for text in (commit, commit[:7])]
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
    history.update()
    for directory in passed_runs(asked.label, asked.row, _MOST_PASSED):
        record = load_record(directory)
        if record.id != asked.id and (record.started_at or "") < (asked.started_at or "~"):
            return _side(directory)
    hint = "name the other run: `ci-tasks runs` lists them"
    raise UsageError(f"no kept run of {asked.row} passed before {asked.id}", hint=hint)


def _side(run: RunDir) -> RunSide:
    plan = None
    with suppress(OSError, RecordError):
        plan = read_plan(run)
    return RunSide(load_record(run), plan, run.log)


# -- two of them -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """`axis` is one of AXES, or status, failure and metric of what came out; `name` is the package, variable,
    file or metric. `step` is the first at which a metric's values differ."""

    axis: str
    name: str
    old: str
    new: str
    step: int | None = None


@dataclass(frozen=True)
class RunDifference:
    """Two runs side by side. `same` are axes that were seen on both sides and are equal; `not_seen` are the ones that a
    side did not show. `next_step` is the command that finds the commit which broke the row."""

    old: str
    new: str
    inputs: tuple[Difference, ...]
    outputs: tuple[Difference, ...]
    same: tuple[str, ...]
    not_seen: tuple[str, ...]
    next_step: str


def compare_runs(old: RunSide, new: RunSide) -> RunDifference:
    before, after = old.inputs(), new.inputs()
    seen = [axis for axis in AXES if axis in before and axis in after]
    inputs = [each for axis in seen for each in _differences(axis, before[axis], after[axis])]
    axes, outputs = {each.axis for each in inputs}, tuple(compare_outputs(old, new))
    same, unseen = tuple(axis for axis in seen if axis not in axes), tuple(axis for axis in AXES if axis not in seen)
    ids = old.record.id, new.record.id
    return RunDifference(*ids, tuple(inputs), outputs, same, unseen, _next_step(old, new))


def _differences(axis: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Difference]:
    for name in {**old, **new}:
        before, after = old.get(name, NO_VALUE), new.get(name, NO_VALUE)
        # A digest names an image, whatever the tag or the mirror before it.
        both = [value.partition("@")[2] or value for value in (before, after)] if axis == IMAGE else [before, after]
        if both[0] == both[1]:
            continue
        if axis == ENV and (is_private(name, before) or is_private(name, after)):
            # Of what may be a secret only that it differs: a comparison is shown to others.
            before, after = (value if value == NO_VALUE else MASK for value in (before, after))
            after = f"{MASK}, another value" if before == after else after
        yield Difference(axis, name, before, after)


def compare_outputs(old: RunSide, new: RunSide) -> Iterator[Difference]:
    first, second = old.record, new.record
    if first.status != second.status:
        yield Difference("status", "status", first.status, second.status)
    if (first.triage and first.triage.signature) != (second.triage and second.triage.signature):
        lines = [run.triage.line if run.triage else NO_VALUE for run in (first, second)]
        yield Difference("failure", "failure", lines[0], lines[1])
    first_steps: dict[str, ValueDifference] = {}
    for each in compare_values("", of_lowest_rank(old.logged), "", of_lowest_rank(new.logged)).differences:
        first_steps.setdefault(each.name, each)
    for name, each in first_steps.items():
        yield Difference("metric", name, str(each.old), str(each.new), int(each.step))


def _next_step(old: RunSide, new: RunSide) -> str:
    """The command that finds the commit; "" if the row did not break, or no option sets its code alone. What a record
    of others says becomes no option."""
    first, second = old.record, new.record
    before, after = first.checkout, second.checkout
    is_one_row = (first.label, first.row) == (second.label, second.row) and not second.label.startswith("-")
    if not (is_one_row and before and after and before.head != after.head) or before.dirty or after.overlays:
        return ""
    if (first.status, second.status) != (PASSED, FAILED) or not _HASH.fullmatch(before.head):
        return ""
    ends = ["compare", "--base", before.head] if after.dirty else ["bisect", "--good", before.head, "--bad", after.head]
    words = [second.label, "--only", second.row, "--host", second.host or "local"]
    return shlex.join(["ci-tasks", ends[0], *words, *ends[1:]])


def text(old: RunSide, new: RunSide, result: RunDifference, width: int | None = None) -> list[str]:
    """As a person reads it in a terminal."""
    heads = [
        (word, run.record.id, f"{run.record.label} {run.record.row}", run.record.host or "", run.record.status)
        for word, run in (("old", old), ("new", new))
    ]
    lines = _table(heads, (), width)
    for title, differences in (("Results differ:", result.outputs), ("Inputs differ:", result.inputs)):
        rows = [
            (each.axis, each.name if each.step is None else f"{each.name} from step {each.step}", each.old, each.new)
            for each in differences
        ]
        lines += ["", title, "", *_table(rows, ("", "NAME", "OLD", "NEW"), width)] if rows else []
    lines += ["", *([f"next: {one_line(result.next_step)}"] if result.next_step else [])]
    lines += paragraph(f"Equal: {', '.join(result.same) or 'nothing'}", width)
    return lines + (paragraph(f"Not seen: {', '.join(result.not_seen)}", width) if result.not_seen else [])


def _table(rows: Sequence[Sequence[str]], head: Sequence[str], width: int | None) -> list[str]:
    return Table([tuple(map(one_line, row)) for row in rows], head).text(width)
