"""A level's run, from two working trees to the summary for the pull request. The summary of a run that has ended is
made from its directory alone, so that `attach` can end with it as well; or from a log alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_tasks.agent.codec import encode, from_json, to_json
from ci_tasks.agent.files import pieces_of
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.checkout.delivery import all_conversions, copy_side_by_side
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import CheckoutError, UsageError, printable
from ci_tasks.features.verl.judge.learning import REWARD, series
from ci_tasks.features.verl.judge.records import RESULT_CODES, Deliverable, Summary
from ci_tasks.features.verl.judge.summary import summarize, text
from ci_tasks.features.verl.judge.training_log import BRIDGE_CHECKS, RunFacts, TrainingFacts, read_run
from ci_tasks.features.verl.judge.verdict import LevelRun
from ci_tasks.features.verl.levels.job import LABEL, workflow
from ci_tasks.features.verl.levels.levels import LevelRequest, Training, trainings
from ci_tasks.features.verl.levels.script import BRIDGE, VERL, command, render
from ci_tasks.features.verl.options import VerlOptions
from ci_tasks.records import CANCELLED, EXIT_CODES, PASSED, VACUOUS, BatchResult, PlanEntry, RunRecord
from ci_tasks.report import lists
from ci_tasks.results.probe_evidence import read_run_evidence
from ci_tasks.run import label as running
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest
from ci_tasks.run.events import EventStream

BRIDGE_HAS = "src/megatron/bridge"
_MINUTES = {0: 90, 1: 150, 2: 240, 3: 150, 4: 240, 5: 720}
_CONTEXT = "verl.json"  # in the run's directory
_MEGATRON = "3rdparty/Megatron-LM"
_MOST_DIRTY = 10  # files
_MOVING = re.compile(r"(?:^|[._-])(?:latest|nightly|main|master|dev|edge|stable)$", re.IGNORECASE)


@dataclass(frozen=True)
class LevelContext:
    """What a level's run was started with, kept in its directory, so that the run can be judged later. `command`
    repeats the run when it is pasted; `remarks` are limitations that were known before it; `scripts` are the texts of
    the trainings' scripts, by path."""

    request: LevelRequest
    bridge: Checkout
    verl: Checkout
    command: str
    host: str
    image: str = ""
    simulated: bool = False
    baseline: str = ""
    remarks: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)


def read_context(directory: str) -> LevelContext | None:
    """The context of the run in `directory`; None if no level was started there from this machine."""
    try:
        text = Path(directory, _CONTEXT).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return from_json(LevelContext, text, where=_CONTEXT)


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

    def with_overrides(self, overrides: Sequence[str]) -> LevelTrees:
        request = replace(self.context.request, overrides=(*self.context.request.overrides, *overrides))
        return replace(self, context=replace(self.context, request=request))

    def job(self) -> tuple[CheckoutSource, RunRequest]:
        options, request, specs = self.options, self.context.request, self.config.select_hosts(self.options.host)
        script = render(
            request,
            self.trainings,
            self.context.scripts[request.wrapper],
            simulated=self.context.simulated,
            contained=specs[0].runtime != "none",
        )
        # What a person said for this run, else for the hosts (of several the shortest), else what the level takes.
        limits = [spec.timeout_minutes for spec in specs if "timeout_minutes" in self.config.sources.get(spec.name, {})]
        job = workflow(
            request.level,
            script,
            gpus=request.gpus,
            image=options.image,
            volumes=tuple(f"{path}:{path}" for path in (options.data, options.dummy_config) if path),
            minutes=options.timeout or min(limits, default=float(_MINUTES[request.level])),
        )
        conversions = all_conversions({BRIDGE: self.context.bridge, VERL: self.context.verl})
        source = CheckoutSource(self.path, f"{options.bridge} and {options.verl}", job, conversions=conversions)
        files = {_CONTEXT: to_json(self.context, indent=1) + "\n"}
        return source, RunRequest(LABEL, host=options.host, keep=options.keep, by_runner=True, files=files)


def plan(trees: LevelTrees) -> list[PlanEntry]:
    """Write the run directory that the level would execute. Print its plan, every training, and what is known to be
    missing."""
    source, request = trees.job()
    entries = running.plan(source, trees.config, request)
    ends = "one that fails ends the run, and so does a level 0 whose log contradicts it"
    lines = [*lists.plans(entries), "", f"Trainings, in this order; {ends}:"]
    for number, one in enumerate(trees.trainings, 1):
        lines += [f"{number}. {one.name}, to step {one.steps}", f"   {command(one)}"]
    print("\n".join([*lines, "", *_headline(trees)]))
    return entries


def run(trees: LevelTrees, *, events: EventStream | None = None) -> tuple[int, Summary | BatchResult | None]:
    """Run the asked level and those that it needs, and end with the summary. Returns the exit code of its result, and
    the summary of what ran to its end, or what goes on without us."""
    print("\n".join(_headline(trees)), flush=True)
    source, request = trees.job()
    detach, host = trees.options.detach, trees.options.host
    done = running.execute_label(source, trees.config, request, ExecutionOptions(detach=detach, events=events))
    if done is None:
        return EXIT_CODES[VACUOUS], None
    if detach and not done.records:
        print(f"{done.batch}: the level goes on at {host}; `ci-tasks attach {done.batch}` ends with its summary")
        return 0, done.going_on
    if done.records[0].status == CANCELLED:
        return done.exit_code, None
    summary = conclude(trees.context, done.records[0], os.path.dirname(done.logs[0]))
    return RESULT_CODES[summary.result], summary


def _headline(trees: LevelTrees) -> list[str]:
    context, options = trees.context, trees.options
    lines = [f"Bridge: {context.bridge.title}, {options.bridge}", f"verl:   {context.verl.title}, {options.verl}"]
    return [*lines, *(f"note: {remark}" for remark in context.remarks)]


@contextmanager
def trees_under_test(
    options: VerlOptions, request: LevelRequest, config: Config, revision: str = ""
) -> Iterator[LevelTrees]:
    """Both trees, checked and copied, for as long as the block lasts; of Bridge `revision`, if it is given. Raises
    UsageError, CheckoutError."""
    specs, bridge, verl = config.select_hosts(options.host), Path(options.bridge), Path(options.verl)
    if not (bridge / BRIDGE_HAS).is_dir():
        raise CheckoutError(f"{bridge} is no Megatron-Bridge: it has no {BRIDGE_HAS}", hint="--bridge DIR names it")
    scripts = {path: _script(verl, path) for path in (request.wrapper, request.script) if path}
    trainings(request, scripts)
    _check_hosts(specs, options)
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        path = Path(scratch) / "trees"
        path.mkdir()
        made = copy_side_by_side({BRIDGE: bridge, VERL: verl}, path, {BRIDGE: revision} if revision else {})
        context = LevelContext(
            request=request,
            bridge=made[BRIDGE],
            verl=made[VERL],
            command=options.command_line,
            host=options.host,
            image=options.image or "",
            simulated=specs[0].simulate,
            baseline=options.baseline or "",
            remarks=tuple(_remarks(bridge, options.image or "")),
            scripts=scripts,
        )
        yield LevelTrees(path, options, config, context)


def _remarks(bridge: Path, image: str) -> Iterator[str]:
    """What limits, before the run, what it can show."""
    tag = image.rpartition("/")[2].partition(":")[2]
    if image and "@sha256:" not in image and (not tag or _MOVING.search(tag)):
        yield f"image {image} has a tag that moves: pin a release, or the digest that ran"
    if not (bridge / _MEGATRON / "megatron/core").is_dir():
        yield f"{bridge}/{_MEGATRON} is empty, so megatron.core is the image's: git submodule update --init"


def _check_hosts(specs: Sequence[HostSpec], options: VerlOptions) -> None:
    first = specs[0]
    for spec in specs[1:]:
        if (spec.runtime == "none", spec.simulate) != (first.runtime == "none", first.simulate):
            raise UsageError(
                f"hosts {first.name} and {spec.name} do not run one and the same level",
                hint="name hosts of one kind: only one of these simulates, or uses containers",
            )
    if not options.image and first.runtime != "none":
        raise UsageError(
            f"host {first.name} runs levels in a container, and no image is named",
            hint="--image verlai/verl:TAG, a vLLM-flavored tag unless another engine is tested (or VERL_IMAGE)",
        )


def _script(verl: Path, path: str) -> str:
    try:
        return (verl / path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise CheckoutError(
            f"{verl} has no {path}", hint="--verl DIR names verl's checkout, --wrapper FILE a wrapper that has moved"
        ) from None


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
    run = RunDir(directory)
    workspace, image = read_plan(run).workspace, image_identity(record)
    facts = read_run(lambda: pieces_of(run.log), context.request.proofs)
    level = LevelRun(
        context.request,
        trainings(context.request, context.scripts),
        facts,
        record.status,
        record.reason,
        root=f"{workspace}/{BRIDGE}" if workspace else "",
        evidence=read_run_evidence(run),
        baseline=read_baseline(Path(context.baseline)) if context.baseline else None,
        bridge=repository(context.bridge),
        verl=repository(context.verl),
        command=context.command,
        log=run.log if Path(run.log).exists() else "",
        image=f"{context.image}, {image or 'digest not seen'}" if context.image else "",
        host=record.host or context.host,
        simulated=context.simulated,
        remarks=context.remarks,
    )
    summary = summarize(level)
    stored = json.dumps(encode(summary), indent=1, ensure_ascii=False) + "\n"
    Path(directory, "summary.json").write_text(stored, encoding="utf-8", errors="backslashreplace")
    return summary, facts


def judge_log(log: Path, request: LevelRequest, command: str = "", baseline: Path | None = None) -> Summary:
    """What an existing log shows of a level, as people have it who ran the wrapper themselves: of the level's own
    trainings, each from where the trainer prints its settings. What a log cannot show is not seen.
    Raises UsageError."""
    if not log.is_file():
        raise UsageError(f"--log names {log}, which is no file")
    planned = [one for one in trainings(request) if one.level == request.level]
    facts = read_run(lambda: pieces_of(str(log)), request.proofs, [one.name for one in planned])
    if request.checks:
        facts.preflight.setdefault(BRIDGE_CHECKS, Deliverable(BRIDGE_CHECKS, "cited", request.checks))
    base = read_baseline(baseline) if baseline else None
    return summarize(LevelRun(request, planned, facts, PASSED, baseline=base, command=command, log=str(log)))


def read_baseline(path: Path) -> TrainingFacts:
    """The last training with rewards in a baseline's log. Raises UsageError if it has none to compare with."""
    if not path.is_file():
        raise UsageError(f"--baseline names {path}, which is no file")
    found = read_run(lambda: pieces_of(str(path)), names=("baseline",)).trainings.values()
    rewarded = [one for one in found if series(one.metrics, REWARD)]
    if not rewarded:
        raise UsageError(
            f"--baseline {path} has no {REWARD} of any step",
            hint="give the log of a training of level 5: the file `log` in its run directory, or verl's console output",
        )
    return rewarded[-1]


def image_identity(record: RunRecord) -> str:
    """The digest of the image that ran; of one that was never pulled, its id. "" if no container was seen."""
    ids = [container.image_id for container in record.environment.containers if container.image_id]
    return record.environment.digest or next(iter(ids), "")


def repository(tree: Checkout) -> str:
    """Its commit, which git knows, plus the files that differ from it."""
    if not tree.head:
        return "no git repository"
    dirty: Sequence[str] = tree.dirty
    more = f" and {len(dirty) - _MOST_DIRTY} more" if len(dirty) > _MOST_DIRTY else ""
    return f"{tree.head[:12]}{' plus' if dirty else ', no dirty files'} {', '.join(dirty[:_MOST_DIRTY])}{more}".rstrip()
