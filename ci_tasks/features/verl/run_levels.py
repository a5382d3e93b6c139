"""`verl`: the levels of a Megatron-Bridge change, from two working trees to the summary for its pull request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.checkout.tree_pair import copy_side_by_side, unlike_disk
from ci_tasks.config import Config
from ci_tasks.errors import CheckoutError, UsageError
from ci_tasks.features.verl import report
from ci_tasks.features.verl.judge.read_log import metrics_of, read_run
from ci_tasks.features.verl.judge.verdict_of_run import LevelRun, judge
from ci_tasks.features.verl.judge.verdict_of_training import RunEnd
from ci_tasks.features.verl.levels import wrapper
from ci_tasks.features.verl.levels.job import LABEL, LevelJobOptions, workflow
from ci_tasks.features.verl.levels.levels import LevelRequest, Training, trainings
from ci_tasks.features.verl.levels.script import BRIDGE, VERL
from ci_tasks.features.verl.levels.summary import BLOCKED, FAIL, PASS, Provenance, Summary
from ci_tasks.records import CANCELLED, EXIT_CODES, VACUOUS, Checkout, PlannedRun
from ci_tasks.run import label as running
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.events import EventStream
from ci_tasks.run.label import LabelResult
from ci_tasks.run.prepare import RunRequest
from ci_tasks.run.row_execution import ExecutionOptions

_MINUTES = {0: 90, 1: 150, 2: 240, 3: 150, 4: 240, 5: 720}
_BRIDGE_HAS = "src/megatron/bridge"
_CHUNK = 1 << 18
RESULT_CODES = {PASS: 0, FAIL: 1, BLOCKED: 125}


@dataclass(frozen=True)
class VerlRequest:
    """Where the levels run. `data` is a directory of the host with data and models, which the container sees
    under the same path; `baseline` is the log of another run of level 5; `command` repeats this one."""

    request: LevelRequest
    bridge: Path
    verl: Path
    host: str
    command: str
    image: str | None = None
    data: str | None = None
    baseline: Path | None = None
    keep: bool = False


@dataclass(frozen=True)
class TreesUnderTest:
    """Both trees as they are now, copied side by side, and the trainings that they will run."""

    source: CheckoutSource
    bridge: Checkout
    verl: Checkout
    trainings: Sequence[Training]


def plan(options: VerlRequest, config: Config) -> list[PlannedRun]:
    """Write the run directory that the level would execute. Returns its plan."""
    with _trees_under_test(options, config) as trees:
        return running.plan(trees.source, config, _request(options))


def run(
    options: VerlRequest, config: Config, *, markdown: bool = False, events: EventStream | None = None
) -> tuple[int, Summary | None]:
    """Run the asked level and those that it needs, and end with the summary as text or markdown. Returns the exit code
    of its result, and the summary of what ran to its end."""
    if options.baseline is not None and not options.baseline.is_file():
        raise UsageError(f"--baseline names {options.baseline}, which is no file")
    with _trees_under_test(options, config) as trees:
        print(
            f"Bridge: {trees.bridge.title}, {options.bridge}\nverl:   {trees.verl.title}, {options.verl}",
            flush=True,
        )
        done = running.execute_label(trees.source, config, _request(options), ExecutionOptions(events=events))
    if done is None:
        return EXIT_CODES[VACUOUS], None
    if done.records[0].status == CANCELLED:
        return done.exit_code, None
    summary = _summary(options, trees, done)
    directory = os.path.dirname(done.logs[0])
    for name, text in (
        ("summary.txt", "\n".join(report.text(summary)) + "\n"),
        ("summary.md", report.markdown(summary)),
        ("summary.json", json.dumps(report.public(summary), indent=1, ensure_ascii=False) + "\n"),
    ):
        Path(directory, name).write_text(text, encoding="utf-8", errors="backslashreplace")
    written = f"the summary, as text, markdown and JSON: {directory}"
    print("\n".join(["", *_shown(summary, markdown=markdown), "", written]), flush=True)
    return RESULT_CODES[summary.result], summary


def _summary(options: VerlRequest, trees: TreesUnderTest, done: LabelResult) -> Summary:
    record, log = done.records[0], done.logs[0]
    workspace = read_plan(RunDir(os.path.dirname(log))).workspace
    provenance = Provenance(
        bridge_commit=trees.bridge.commit[:12],
        verl_commit=trees.verl.commit[:12],
        command=options.command,
        log=log if os.path.exists(log) else "",
        bridge_dirty=trees.bridge.dirty,
        verl_dirty=trees.verl.dirty,
        image=options.image or "",
        host=options.host,
        bridge_root=f"{workspace}/{BRIDGE}" if workspace else "",
    )
    facts = read_run(lambda: _read_chunks(log), options.request.proofs)
    baseline = metrics_of(lambda: _read_chunks(str(options.baseline))) if options.baseline else None
    ended = RunEnd(record.status, record.reason)
    return judge(LevelRun(options.request, trees.trainings, facts, ended, provenance, baseline))


def _read_chunks(log: str) -> Iterator[bytes]:
    """Nothing where there is no log: a run that never began has none."""
    try:
        with open(log, "rb", buffering=0) as source:
            yield from iter(lambda: source.read(_CHUNK), b"")
    except FileNotFoundError:
        return


def _shown(summary: Summary, *, markdown: bool) -> list[str]:
    if markdown:
        return report.markdown(summary).splitlines()
    plot = ["", *report.plot(summary.curve)] if summary.curve is not None else []
    return [*report.text(summary), *plot]


@contextmanager
def _trees_under_test(options: VerlRequest, config: Config) -> Iterator[TreesUnderTest]:
    """Both trees, checked and copied, for as long as the block lasts. Raises UsageError, CheckoutError."""
    spec = config.host(options.host)
    planned = trainings(options.request)
    _check_trees(options, planned)
    if not options.image and spec.runtime != "none":
        raise UsageError(
            f"host {spec.name} runs levels in a container, and no image is named",
            hint="--image verlai/verl:TAG, a vLLM-flavored tag unless another engine is tested (or VERL_IMAGE)",
        )
    volumes = (f"{options.data}:{options.data}",) if options.data else ()
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        trees = Path(scratch) / "trees"
        trees.mkdir()
        made = copy_side_by_side({BRIDGE: options.bridge, VERL: options.verl}, trees)
        environment = LevelJobOptions(
            image=options.image,
            volumes=volumes,
            minutes=_MINUTES[options.request.level],
            simulated=spec.simulate,
            contained=spec.runtime != "none",
        )
        job = workflow(options.request, planned, environment)
        source = CheckoutSource(trees, f"{options.bridge} and {options.verl}", job, unlike_disk=unlike_disk(made))
        yield TreesUnderTest(source, made[BRIDGE], made[VERL], planned)


def _check_trees(options: VerlRequest, planned: Sequence[Training]) -> None:
    """Both checkouts are what they are said to be, and verl's script reads every variable that a training sets."""
    if not (options.bridge / _BRIDGE_HAS).is_dir():
        raise CheckoutError(
            f"{options.bridge} is no Megatron-Bridge: it has no {_BRIDGE_HAS}", hint="--bridge DIR names it"
        )
    for training in planned:
        script = options.verl / training.script
        if not script.is_file():
            raise CheckoutError(f"{options.verl} has no {training.script}", hint="--verl DIR names verl's checkout")
        if training.level != 4:  # a script of the user's own reads what it likes
            wrapper.check(script.read_text(encoding="utf-8", errors="replace"), training.env, training.script)


def _request(options: VerlRequest) -> RunRequest:
    return RunRequest(LABEL, None, options.host, keep=options.keep, by_runner=True)
