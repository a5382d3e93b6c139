"""`verl`: the levels of a Megatron-Bridge change, from two working trees to the summary for its pull request."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.checkout.delivery import all_conversions, copy_side_by_side
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import CheckoutError, UsageError
from ci_tasks.features.verl import remarks
from ci_tasks.features.verl.level_context import LevelContext
from ci_tasks.features.verl.levels import wrapper
from ci_tasks.features.verl.levels.job import LABEL, LevelJobOptions, workflow
from ci_tasks.features.verl.levels.levels import LevelRequest, Training, trainings
from ci_tasks.features.verl.levels.script import BRIDGE, VERL
from ci_tasks.features.verl.levels.summary import Summary
from ci_tasks.features.verl.remarks import LevelPlanEntry
from ci_tasks.features.verl.run_summary import RESULT_CODES, conclude, read_baseline
from ci_tasks.given_values import GivenValues, OverlaySource
from ci_tasks.records import CANCELLED, EXIT_CODES, VACUOUS, BatchResult, PlanEntry
from ci_tasks.run import label as running
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.events import EventStream
from ci_tasks.run.request import ExecutionOptions, RunRequest

_MINUTES = {0: 90, 1: 150, 2: 240, 3: 150, 4: 240, 5: 720}
BRIDGE_HAS = "src/megatron/bridge"


@dataclass(frozen=True)
class VerlRequest:
    """Where the levels run. `data` is a directory of the host with data and models, which the container sees
    under the same path; `baseline` is the log of another run of level 5; `command` repeats this one. `minutes` is the
    longest that the run may take, None for what the host or the level says. `bridge_revision` is taken instead of
    Bridge's working tree. `overlays` are laid over other packages of the image."""

    request: LevelRequest
    bridge: Path
    verl: Path
    host: str
    command: str
    image: str | None = None
    data: str | None = None
    baseline: Path | None = None
    bridge_revision: str | None = None
    keep: bool = False
    detach: bool = False
    minutes: float | None = None
    overlays: tuple[OverlaySource, ...] = ()


@dataclass(frozen=True)
class TreesUnderTest:
    """Both trees as they are now, copied side by side, the trainings that they will run, and what they are run with."""

    source: CheckoutSource
    context: LevelContext
    trainings: Sequence[Training]
    job: LevelJobOptions

    def with_overrides(self, overrides: Sequence[str]) -> TreesUnderTest:
        request = replace(self.context.request, overrides=(*self.context.request.overrides, *overrides))
        planned = wrapper.trainings_as_read(trainings(request), self.context.scripts)
        source = replace(self.source, workflow=workflow(request, planned, self.job))
        return replace(self, source=source, context=replace(self.context, request=request), trainings=planned)


def plan(options: VerlRequest, config: Config) -> tuple[list[PlanEntry], list[LevelPlanEntry], list[str]]:
    """Write the run directory that the level would execute. Returns its plan, the same for JSON, and as text every
    training and what is known to be missing."""
    _require_one_host(options, config, "--plan")
    with trees_under_test(options, config) as trees:
        planned = running.plan(trees.source, config, run_request(options, trees))
        entries = [remarks.entry(run, trees.trainings, trees.context.remarks) for run in planned]
        return planned, entries, [*remarks.describe(trees.trainings), "", *_headline(options, trees)]


def run(
    options: VerlRequest, config: Config, *, markdown: bool = False, events: EventStream | None = None
) -> tuple[int, Summary | BatchResult | None]:
    """Run the asked level and those that it needs, and end with the summary as text or markdown. Returns the exit code
    of its result, and the summary of what ran to its end, or what goes on without us."""
    if options.baseline is not None:
        read_baseline(options.baseline)
    if options.detach:
        _require_one_host(options, config, "--detach")
    with trees_under_test(options, config) as trees:
        print("\n".join(_headline(options, trees)), flush=True)
        how = ExecutionOptions(detach=options.detach, events=events)
        done = running.execute_label(trees.source, config, run_request(options, trees), how)
    if done is None:
        return EXIT_CODES[VACUOUS], None
    if options.detach and not done.records:
        print(
            f"{done.batch}: the level goes on at {options.host}; `ci-tasks attach {done.batch}` ends with its summary"
        )
        return 0, done.going_on
    if done.records[0].status == CANCELLED:
        return done.exit_code, None
    directory = os.path.dirname(done.logs[0])
    summary = conclude(trees.context, done.records[0], directory, markdown=markdown)
    return RESULT_CODES[summary.result], summary


def _require_one_host(options: VerlRequest, config: Config, flag: str) -> None:
    if len(config.select_hosts(options.host)) > 1:
        raise UsageError(
            f"{flag} is for one host, and {options.host} is several", hint="name the one that is to run it"
        )


def _headline(options: VerlRequest, trees: TreesUnderTest) -> list[str]:
    context = trees.context
    return [
        f"Bridge: {context.bridge.title}, {options.bridge}",
        f"verl:   {context.verl.title}, {options.verl}",
        *(f"note: {remark}" for remark in context.remarks),
    ]


@contextmanager
def trees_under_test(options: VerlRequest, config: Config) -> Iterator[TreesUnderTest]:
    """Both trees, checked and copied, for as long as the block lasts. Raises UsageError, CheckoutError."""
    specs = config.select_hosts(options.host)
    planned = trainings(options.request)
    scripts = _check_trees(options, planned)
    planned = wrapper.trainings_as_read(planned, scripts)
    contained = _are_contained(specs)
    if not options.image and contained:
        raise UsageError(
            f"host {specs[0].name} runs levels in a container, and no image is named",
            hint="--image verlai/verl:TAG, a vLLM-flavored tag unless another engine is tested (or VERL_IMAGE)",
        )
    if options.request.nodes > 1 and not contained:
        raise UsageError(
            f"--nodes {options.request.nodes}: host {specs[0].name} runs levels without a container, so nothing starts "
            "Ray on the other nodes",
            hint="runtime: pyxis or apptainer",
        )
    volumes = (f"{options.data}:{options.data}",) if options.data else ()
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        trees = Path(scratch) / "trees"
        trees.mkdir()
        revisions = {BRIDGE: options.bridge_revision} if options.bridge_revision else {}
        made = copy_side_by_side({BRIDGE: options.bridge, VERL: options.verl}, trees, revisions)
        environment = LevelJobOptions(
            image=options.image,
            volumes=volumes,
            minutes=_minutes(options, specs, config),
            simulated=specs[0].simulate,
            contained=contained,
        )
        job = workflow(options.request, planned, environment)
        given = GivenValues(overlays=options.overlays)
        source = CheckoutSource(
            trees, f"{options.bridge} and {options.verl}", job, given=given, conversions=all_conversions(made)
        )
        yield TreesUnderTest(source, _context(options, made, planned, scripts), planned, environment)


def _are_contained(specs: Sequence[HostSpec]) -> bool:
    """Whether the hosts run a level in a container. Raises UsageError for hosts that need different scripts."""
    first = specs[0]
    for spec in specs[1:]:
        if (spec.runtime == "none", spec.simulate) != (first.runtime == "none", first.simulate):
            raise UsageError(
                f"hosts {first.name} and {spec.name} do not run one and the same level: only one of them simulates, or "
                "uses containers",
                hint="name hosts of one kind",
            )
    return first.runtime != "none"


def _minutes(options: VerlRequest, specs: Sequence[HostSpec], config: Config) -> float:
    """What a person said for this run, else for the hosts (of several the shortest), else what the level takes."""
    of_hosts = [spec.timeout_minutes for spec in specs if "timeout_minutes" in config.sources.get(spec.name, {})]
    return options.minutes or min(of_hosts, default=float(_MINUTES[options.request.level]))


def _context(
    options: VerlRequest, made: Mapping[str, Checkout], planned: Sequence[Training], scripts: Mapping[str, str]
) -> LevelContext:
    known = [
        *remarks.of_image(options.image or "", planned[0].env["ENGINE"]),
        *remarks.of_trees(options.bridge, options.verl, options.request, options.overlays),
    ]
    return LevelContext(
        request=options.request,
        bridge=made[BRIDGE],
        verl=made[VERL],
        command=options.command,
        host=options.host,
        image=options.image or "",
        baseline=str(options.baseline or ""),
        remarks=tuple(known),
        scripts=scripts,
    )


def _check_trees(options: VerlRequest, planned: Sequence[Training]) -> dict[str, str]:
    """Both checkouts are what they are said to be. Returns the texts of verl's scripts by their path."""
    texts: dict[str, str] = {}
    for overlay in options.overlays:
        if (Path(overlay.path) / BRIDGE_HAS).is_dir() or (Path(overlay.path) / VERL).is_dir():
            raise UsageError(
                f"--with {overlay.name}: {overlay.path} is a tree of Bridge or of verl, which the level has already",
                hint="--bridge DIR and --verl DIR name these; --with is for what they use, such as megatron-core",
            )
    if not (options.bridge / BRIDGE_HAS).is_dir():
        raise CheckoutError(
            f"{options.bridge} is no Megatron-Bridge: it has no {BRIDGE_HAS}", hint="--bridge DIR names it"
        )
    for training in planned:
        script = options.verl / training.script
        if not script.is_file():
            raise CheckoutError(f"{options.verl} has no {training.script}", hint="--verl DIR names verl's checkout")
        texts[training.script] = script.read_text(encoding="utf-8", errors="replace")
    for test in options.request.bridge_tests if not options.bridge_revision else ():
        if not (options.bridge / test.partition("::")[0]).exists():
            raise CheckoutError(f"{options.bridge} has no {test}", hint="--test FILE names a test from Bridge's root")
    return texts


def run_request(options: VerlRequest, trees: TreesUnderTest) -> RunRequest:
    return RunRequest(
        LABEL,
        None,
        options.host,
        keep=options.keep,
        by_runner=True,
        nodes=options.request.nodes,
        files=trees.context.files(),
    )
