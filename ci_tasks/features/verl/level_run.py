"""A level's run, from two working trees to the summary for the pull request."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_tasks.agent.codec import from_json, to_json
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.checkout.delivery import all_conversions, copy_side_by_side
from ci_tasks.cli.given_options import overlay_sources
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import CheckoutError, UsageError
from ci_tasks.features.verl.judge.records import RESULT_CODES, Summary
from ci_tasks.features.verl.levels.job import LABEL, workflow
from ci_tasks.features.verl.levels.levels import LevelRequest, Training, trainings
from ci_tasks.features.verl.levels.script import BRIDGE, VERL, command, render
from ci_tasks.features.verl.options import VerlOptions
from ci_tasks.given_values import GivenValues, OverlaySource
from ci_tasks.records import CANCELLED, EXIT_CODES, VACUOUS, BatchResult, PlanEntry
from ci_tasks.report import lists
from ci_tasks.run import label as running
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.events import EventStream
from ci_tasks.run.request import ExecutionOptions, RunRequest

BRIDGE_HAS = "src/megatron/bridge"
_MINUTES = {0: 90, 1: 150, 2: 240, 3: 150, 4: 240, 5: 720}
_CONTEXT = "verl.json"  # in the run's directory
_MEGATRON, _DATA_SCRIPT = "3rdparty/Megatron-LM", "examples/data_preprocess/gsm8k.py"
_MOVING = re.compile(r"(?:^|[._-])(?:latest|nightly|main|master|dev|edge|stable)$", re.IGNORECASE)
_ENGINES = {"sglang": r"sglang|sgl(?![a-z])", "trtllm": r"trt-?llm|tensorrt", "vllm": r"vllm"}


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
class PlannedTraining:
    """`command` is a line for a shell in verl's root, `steps` the global step that it has to reach."""

    name: str
    steps: int
    command: str


@dataclass(frozen=True)
class LevelPlanEntry(PlanEntry):
    """An entry of `verl --plan --json`. `remarks` are limitations that are known before the run."""

    trainings: tuple[PlannedTraining, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class LevelTrees:
    """Both trees as they are now, copied side by side into `path`, and how a level runs on them."""

    path: Path
    options: VerlOptions
    config: Config
    context: LevelContext
    overlays: tuple[OverlaySource, ...] = ()

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
        how, given = f"{options.bridge} and {options.verl}", GivenValues(overlays=self.overlays)
        source = CheckoutSource(self.path, how, job, given=given, conversions=conversions)
        files = {_CONTEXT: to_json(self.context, indent=1) + "\n"}
        return source, RunRequest(LABEL, host=options.host, keep=options.keep, by_runner=True, files=files)


def plan(trees: LevelTrees) -> list[LevelPlanEntry]:
    """Write the run directory that the level would execute. Print its plan, every training, and what is known to be
    missing."""
    source, request = trees.job()
    planned = [PlannedTraining(one.name, one.steps, command(one)) for one in trees.trainings]
    entries = running.plan(source, trees.config, request)
    lines = [*lists.plans(entries), "", "Trainings, in this order; one that fails ends the run, and so does a level 0"]
    lines[-1] += " whose log contradicts it:"
    for number, one in enumerate(planned, 1):
        lines += [f"{number}. {one.name}, to step {one.steps}", f"   {one.command}"]
    print("\n".join([*lines, "", *_headline(trees)]))
    return [LevelPlanEntry(**vars(entry), trainings=tuple(planned), remarks=trees.context.remarks) for entry in entries]


def run(trees: LevelTrees, *, events: EventStream | None = None) -> tuple[int, Summary | BatchResult | None]:
    """Run the asked level and those that it needs, and end with the summary. Returns the exit code of its result, and
    the summary of what ran to its end, or what goes on without us."""
    from ci_tasks.features.verl.run_summary import conclude

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
    specs, overlays = config.select_hosts(options.host), overlay_sources(options.with_, options.build)
    bridge, verl = Path(options.bridge), Path(options.verl)
    _check_hosts(specs, options)
    _check_trees(bridge, verl, () if revision else request.bridge_tests, overlays)
    scripts = {path: _script(verl, path) for path in (request.wrapper, request.script) if path}
    engine = trainings(request, scripts)[0].env.get("ENGINE", "")
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
            remarks=tuple(remarks(bridge, verl, options, engine, overlays)),
            scripts=scripts,
        )
        yield LevelTrees(path, options, config, context, overlays)


def remarks(
    bridge: Path, verl: Path, options: VerlOptions, engine: str, overlays: Sequence[OverlaySource] = ()
) -> Iterator[str]:
    """What limits, before the run, what it can show: an image's tag that moves or names another engine, and what the
    trees lack. `engine` is the one that the trainings ask for."""
    image = options.image or ""
    name, _, tag = image.rpartition("/")[2].partition(":")
    pinned = not image or "@sha256:" in image
    if not pinned and (not tag or _MOVING.search(tag)):
        yield f"image {image} has a tag that moves: pin a release, or the digest that ran"
    named = [other for other, words in _ENGINES.items() if re.search(words, f"{name}:{tag}", re.IGNORECASE)]
    if not pinned and named and engine not in named:
        yield f"image {image} is one for {', '.join(named)}, and the engine is {engine}: it may fail before Bridge"
    core = bridge / _MEGATRON
    if not (core.is_dir() and any(path.name != ".git" for path in core.iterdir())) and not any(
        (Path(overlay.path) / "megatron/core").is_dir() for overlay in overlays
    ):
        yield (
            f"{bridge} has an empty {_MEGATRON}: megatron.core will be that of the image, not the one that Bridge pins;"
            f" `git -C {bridge} submodule update --init {_MEGATRON}`"
        )
    if not (options.train_files and options.val_files) and not (verl / _DATA_SCRIPT).is_file():
        yield f"{verl} has no {_DATA_SCRIPT}, which prepares the data; name it by --train-files and --val-files"


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


def _check_trees(bridge: Path, verl: Path, tests: Sequence[str], overlays: Sequence[OverlaySource]) -> None:
    for overlay in overlays:
        if (Path(overlay.path) / BRIDGE_HAS).is_dir() or (Path(overlay.path) / VERL).is_dir():
            raise UsageError(
                f"--with {overlay.name}: {overlay.path} is a tree of Bridge or of verl, which the level has already",
                hint="--bridge DIR and --verl DIR name these; --with is for what they use, such as megatron-core",
            )
    if not (bridge / BRIDGE_HAS).is_dir():
        raise CheckoutError(f"{bridge} is no Megatron-Bridge: it has no {BRIDGE_HAS}", hint="--bridge DIR names it")
    for test in tests:
        if not (bridge / test.partition("::")[0]).exists():
            raise CheckoutError(f"{bridge} has no {test}", hint="--test FILE names a test from Bridge's root")


def _script(verl: Path, path: str) -> str:
    try:
        return (verl / path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise CheckoutError(
            f"{verl} has no {path}", hint="--verl DIR names verl's checkout, --wrapper FILE a wrapper that has moved"
        ) from None
