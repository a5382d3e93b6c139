"""A level's run, from two working trees to the summary for the pull request. The summary of a run that has ended is
made from its directory alone, so that `attach` can end with it as well; or from a log alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_tasks.agent.codec import encode, from_json, to_json
from ci_tasks.agent.files import pieces_of
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.checkout.delivery import all_conversions, copy_side_by_side
from ci_tasks.config import Config
from ci_tasks.errors import CheckoutError, UsageError, printable
from ci_tasks.features.verl.judge.learning import REWARD, series
from ci_tasks.features.verl.judge.records import RESULT_CODES, Deliverable, Summary
from ci_tasks.features.verl.judge.training_log import BRIDGE_CHECKS, RunFacts, TrainingFacts, read_run
from ci_tasks.features.verl.judge.training_run import LevelContext, LevelRun
from ci_tasks.features.verl.judge.verdict import summarize, text
from ci_tasks.features.verl.levels.levels import BRIDGE, VERL, LevelRequest, Training, command, render, trainings
from ci_tasks.features.verl.options import VerlOptions
from ci_tasks.features.verl.suite import LABEL, workflow
from ci_tasks.records import CANCELLED, EXIT_CODES, PASSED, VACUOUS, BatchResult, PlanEntry, RunRecord
from ci_tasks.report import lists
from ci_tasks.results.probe_evidence import read_run_evidence
from ci_tasks.run import label as running
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest
from ci_tasks.run.events import EventStream

BRIDGE_HAS = "src/megatron/bridge"
_MINUTES = {0: 90, 1: 150, 2: 240, 3: 150, 4: 240, 5: 720}
_CONTEXT = "verl.json"  # in the run's directory
_MOVING = re.compile(r"(?:^|[._-])(?:latest|nightly|main|master|dev|edge|stable)$", re.IGNORECASE)


def read_context(directory: str) -> LevelContext | None:
    """The context of the run in `directory`; None if no level was started there from this machine."""
    path = Path(directory, _CONTEXT)
    return from_json(LevelContext, path.read_text(encoding="utf-8"), where=_CONTEXT) if path.is_file() else None


@dataclass(frozen=True)
class LevelTrees:
    """Both trees as they are now, copied side by side into `path`, and how a level runs on them."""

    path: Path
    options: VerlOptions
    config: Config
    context: LevelContext

    @property
    def trainings(self) -> tuple[Training, ...]:
        return trainings(self.context.request, self.context.scripts)

    @property
    def headline(self) -> list[str]:
        context, options = self.context, self.options
        lines = [f"Bridge: {context.bridge.title}, {options.bridge}", f"verl:   {context.verl.title}, {options.verl}"]
        return [*lines, *(f"note: {remark}" for remark in context.remarks)]

    def job(self) -> tuple[CheckoutSource, RunRequest]:
        options, context, request = self.options, self.context, self.context.request
        specs = self.config.select_hosts(options.host)
        wrapper, contained = context.scripts[request.wrapper], specs[0].runtime != "none"
        script = render(request, self.trainings, wrapper, simulated=context.simulated, contained=contained)
        # What a person said for this run, else for the hosts (of several the shortest), else what the level takes.
        limits = [spec.timeout_minutes for spec in specs if "timeout_minutes" in self.config.sources.get(spec.name, {})]
        minutes = options.timeout or min(limits, default=float(_MINUTES[request.level]))
        volumes = tuple(f"{path}:{path}" for path in (options.data, options.dummy_config) if path)
        job = workflow(request.level, request.gpus, script, options.image, volumes, minutes)
        conversions = all_conversions({BRIDGE: context.bridge, VERL: context.verl})
        source = CheckoutSource(self.path, f"{options.bridge} and {options.verl}", job, conversions=conversions)
        files = {_CONTEXT: to_json(context, indent=1) + "\n"}
        return source, RunRequest(LABEL, host=options.host, keep=options.keep, by_runner=True, files=files)

    def execute(self, events: EventStream | None) -> running.LabelResult | None:
        source, request = self.job()
        how = ExecutionOptions(detach=self.options.detach, events=events)
        return running.execute_label(source, self.config, request, how)


def plan(trees: LevelTrees) -> list[PlanEntry]:
    """Write the run directory that the level would execute. Print its plan, every training, and what is known to be
    missing."""
    source, request = trees.job()
    entries = running.plan(source, trees.config, request)
    ends = "one that fails ends the run, and so does a level 0 whose log contradicts it"
    lines = [*lists.plans(entries), "", f"Trainings, in this order; {ends}:"]
    for number, one in enumerate(trees.trainings, 1):
        lines += [f"{number}. {one.name}, to step {one.steps}", f"   {command(one)}"]
    print("\n".join([*lines, "", *trees.headline]))
    return entries


def run(trees: LevelTrees, *, events: EventStream | None = None) -> tuple[int, Summary | BatchResult | None]:
    """Run the asked level and those that it needs, and end with the summary. Returns the exit code of its result, and
    the summary of what ran to its end, or what goes on without us."""
    print("\n".join(trees.headline), flush=True)
    done = trees.execute(events)
    if done is None:
        return EXIT_CODES[VACUOUS], None
    if trees.options.detach and not done.records:
        print(f"{done.batch}: goes on at {trees.options.host}; `ci-tasks attach {done.batch}` ends with its summary")
        return 0, done.going_on
    if done.records[0].status == CANCELLED:
        return done.exit_code, None
    summary = conclude(trees.context, done.records[0], os.path.dirname(done.logs[0]))
    return RESULT_CODES[summary.result], summary


@contextmanager
def trees_under_test(
    options: VerlOptions, request: LevelRequest, config: Config, revision: str = ""
) -> Iterator[LevelTrees]:
    """Both trees, checked and copied, for as long as the block lasts; of Bridge `revision`, if it is given. Raises
    UsageError, CheckoutError."""
    first, *others = config.select_hosts(options.host)
    bridge, verl, image, scripts = Path(options.bridge), Path(options.verl), options.image or "", {}
    if not (bridge / BRIDGE_HAS).is_dir():
        raise CheckoutError(f"{bridge} is no Megatron-Bridge: it has no {BRIDGE_HAS}", hint="--bridge DIR names it")
    for path in filter(None, (request.wrapper, request.script)):
        if not (verl / path).is_file():
            hint = "--verl DIR names verl's checkout, --wrapper FILE a wrapper that has moved"
            raise CheckoutError(f"{verl} has no {path}", hint=hint)
        scripts[path] = (verl / path).read_text(encoding="utf-8", errors="replace")
    trainings(request, scripts)
    for spec in others:
        if (spec.runtime == "none", spec.simulate) != (first.runtime == "none", first.simulate):
            hint = "name hosts of one kind: only one of these simulates, or uses containers"
            raise UsageError(f"hosts {first.name} and {spec.name} do not run one and the same level", hint=hint)
    if not image and first.runtime != "none":
        hint = "--image verlai/verl:TAG, a vLLM-flavored tag unless another engine is tested (or VERL_IMAGE)"
        raise UsageError(f"host {first.name} runs levels in a container, and no image is named", hint=hint)
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        into = Path(scratch) / "trees"
        into.mkdir()
        made = copy_side_by_side({BRIDGE: bridge, VERL: verl}, into, {BRIDGE: revision} if revision else {})
        context = LevelContext(
            request=request,
            bridge=made[BRIDGE],
            verl=made[VERL],
            command=options.command_line,
            host=options.host,
            image=image,
            simulated=first.simulate,
            baseline=options.baseline or "",
            remarks=tuple(_remarks(bridge, image)),
            scripts=scripts,
        )
        yield LevelTrees(into, options, config, context)


def _remarks(bridge: Path, image: str) -> Iterator[str]:
    """What limits, before the run, what it can show."""
    tag = image.rpartition("/")[2].partition(":")[2]
    if image and "@sha256:" not in image and (not tag or _MOVING.search(tag)):
        yield f"image {image} has a tag that moves: pin a release, or the digest that ran"
    if not (bridge / "3rdparty/Megatron-LM/megatron/core").is_dir():
        yield f"{bridge}/3rdparty/Megatron-LM is empty, so megatron.core is the image's: git submodule update --init"


# -- of a run that has ended -------------------------------------------------------------------------------------------


def attached(record: RunRecord, directory: str) -> int | None:
    """Print and store the summary of a run that was attached to. Returns the exit code of its result; None for
    what is no level, or was cancelled."""
    context = read_context(directory)
    if context is None and record.label == LABEL:
        print(f"{record.id}: no summary: the machine that started the level has what it is made from")
    if context is None or record.status == CANCELLED:
        return None
    return RESULT_CODES[conclude(context, record, directory).result]


def criteria(directory: str) -> list[str]:
    """What `report` adds: the result, and the criteria of each training; empty for what is no level that has ended."""
    file = Path(directory, "summary.json")
    if not file.exists() or read_context(directory) is None:
        return []
    summary = json.loads(file.read_text(encoding="utf-8"))
    lines = [f"verl: {summary['result']} - {summary['sentence']}"]
    for training in summary["criteria"]:
        lines.append(f"{training['training']}: {training['status']}")
        lines += [f"  {one['name']}: {one['outcome']}, {one['evidence']}" for one in training["criteria"]]
    return [printable(line) for line in lines]


def conclude(context: LevelContext, record: RunRecord, directory: str) -> Summary:
    """Judge the run, print its summary and store it in the run's directory."""
    summary, _ = evaluate(context, record, directory)
    lines = text(summary)
    Path(directory, "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")
    print("\n".join(["", *lines, "", f"the summary, as text and JSON: {directory}"]), flush=True)
    return summary


def evaluate(context: LevelContext, record: RunRecord, directory: str) -> tuple[Summary, RunFacts]:
    """Judge the run and store the result as summary.json in its directory."""
    run, request, image = RunDir(directory), context.request, image_identity(record)
    workspace, facts = read_plan(run).workspace, read_run(pieces_of(run.log), request.proofs)
    level = LevelRun(
        context,
        trainings(request, context.scripts),
        facts,
        record.status,
        record.reason,
        root=f"{workspace}/{BRIDGE}" if workspace else "",
        evidence=read_run_evidence(run),
        baseline=read_baseline(context.baseline),
        log=run.log if Path(run.log).exists() else "",
        image=f"{context.image}, {image or 'digest not seen'}" if context.image else "",
        host=record.host or context.host,
    )
    summary = summarize(level)
    stored = json.dumps(encode(summary), indent=1, ensure_ascii=False) + "\n"
    Path(directory, "summary.json").write_text(stored, encoding="utf-8", errors="backslashreplace")
    return summary, facts


def judge_log(log: Path, request: LevelRequest, command: str = "", baseline: str = "") -> Summary:
    """What an existing log shows of a level, as people have it who ran the wrapper themselves: of the level's own
    trainings, each from where the trainer prints its settings. What a log cannot show is not seen.
    Raises UsageError."""
    planned = [one for one in trainings(request) if one.level == request.level]
    facts = _facts_of(log, "--log", request.proofs, [one.name for one in planned])
    if request.checks:
        facts.preflight.setdefault(BRIDGE_CHECKS, Deliverable(BRIDGE_CHECKS, "cited", request.checks))
    context = LevelContext(request, command=command)
    return summarize(LevelRun(context, planned, facts, PASSED, baseline=read_baseline(baseline), log=str(log)))


def read_baseline(path: str) -> TrainingFacts | None:
    """The last training with rewards in a baseline's log; None without one. Raises UsageError if it has none to compare
    with."""
    found = _facts_of(Path(path), "--baseline", (), ["baseline"]).trainings.values() if path else ()
    rewarded = [one for one in found if series(one.metrics, REWARD)]
    if path and not rewarded:
        hint = "give the log of a training of level 5: the file `log` in its run directory, or verl's console output"
        raise UsageError(f"--baseline {path} has no {REWARD} of any step", hint=hint)
    return rewarded[-1] if rewarded else None


def _facts_of(log: Path, option: str, proofs: Sequence[str], names: Sequence[str]) -> RunFacts:
    if not log.is_file():
        raise UsageError(f"{option} names {log}, which is no file")
    with log.open("rb") as lines:
        is_divided = any(line.startswith(b"ci-tasks-verl: begin: ") for line in lines)  # by a step script of ours
    return read_run(pieces_of(str(log)), proofs, () if is_divided else names)


def image_identity(record: RunRecord) -> str:
    """The digest of the image that ran; of one that was never pulled, its id. "" if no container was seen."""
    ids = [container.image_id for container in record.environment.containers if container.image_id]
    return record.environment.digest or next(iter(ids), "")
