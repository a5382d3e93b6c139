"""`verl`: the levels of a Megatron-Bridge change, from two working trees to the summary for its pull request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.delivery import all_conversions, copy_side_by_side
from ci_tasks.cli.output import print_json
from ci_tasks.config import Config, HostSpec
from ci_tasks.errors import CheckoutError, UsageError
from ci_tasks.features.verl import remarks
from ci_tasks.features.verl.level_context import LevelContext
from ci_tasks.features.verl.levels.job import LABEL, workflow
from ci_tasks.features.verl.levels.levels import LevelRequest, Training, trainings
from ci_tasks.features.verl.levels.script import BRIDGE, VERL
from ci_tasks.features.verl.levels.summary import Summary
from ci_tasks.features.verl.options import VerlOptions
from ci_tasks.features.verl.run_summary import RESULT_CODES, conclude, read_baseline
from ci_tasks.given_values import GivenValues, OverlaySource
from ci_tasks.records import CANCELLED, EXIT_CODES, VACUOUS, BatchResult
from ci_tasks.report import lists
from ci_tasks.run import label as running
from ci_tasks.run.checkout_source import CheckoutSource
from ci_tasks.run.events import EventStream
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.workflow.model import Workflow

_MINUTES = {0: 90, 1: 150, 2: 240, 3: 150, 4: 240, 5: 720}
BRIDGE_HAS = "src/megatron/bridge"


@dataclass(frozen=True)
class TreesUnderTest:
    """Both trees as they are now, copied side by side, the trainings that they will run, and how they are run."""

    source: CheckoutSource
    context: LevelContext
    trainings: Sequence[Training]
    job: Callable[[LevelRequest, Sequence[Training]], Workflow]
    run_request: RunRequest

    def with_overrides(self, overrides: Sequence[str]) -> TreesUnderTest:
        request = replace(self.context.request, overrides=(*self.context.request.overrides, *overrides))
        planned = trainings(request, self.context.scripts)
        source = replace(self.source, workflow=self.job(request, planned))
        return replace(self, source=source, context=replace(self.context, request=request), trainings=planned)


def plan(options: VerlOptions, request: LevelRequest, config: Config) -> int:
    """Write the run directory that the level would execute. Print its plan, every training, and what is known to be
    missing, as text or JSON."""
    _require_one_host(options, config, "--plan")
    with trees_under_test(options, request, config) as trees:
        planned = running.plan(trees.source, config, trees.run_request)
    if options.json:
        print_json([encode(remarks.entry(run, trees.trainings, trees.context.remarks)) for run in planned])
    else:
        described = [*lists.plans(planned), "", *remarks.describe(trees.trainings), "", *_headline(options, trees)]
        print("\n".join(described))
    return 0


def run(
    options: VerlOptions, request: LevelRequest, config: Config, *, events: EventStream | None = None
) -> tuple[int, Summary | BatchResult | None]:
    """Run the asked level and those that it needs, and end with the summary as text or markdown. Returns the exit code
    of its result, and the summary of what ran to its end, or what goes on without us."""
    if options.baseline:
        read_baseline(Path(options.baseline))
    if options.detach:
        _require_one_host(options, config, "--detach")
    with trees_under_test(options, request, config) as trees:
        print("\n".join(_headline(options, trees)), flush=True)
        how = ExecutionOptions(detach=options.detach, events=events)
        done = running.execute_label(trees.source, config, trees.run_request, how)
    if done is None:
        return EXIT_CODES[VACUOUS], None
    if options.detach and not done.records:
        print(
            f"{done.batch}: the level goes on at {options.host}; `ci-tasks attach {done.batch}` ends with its summary"
        )
        return 0, done.going_on
    if done.records[0].status == CANCELLED:
        return done.exit_code, None
    summary = conclude(trees.context, done.records[0], os.path.dirname(done.logs[0]), markdown=options.markdown)
    return RESULT_CODES[summary.result], summary


def _require_one_host(options: VerlOptions, config: Config, flag: str) -> None:
    if len(config.select_hosts(options.host)) > 1:
        raise UsageError(
            f"{flag} is for one host, and {options.host} is several", hint="name the one that is to run it"
        )


def _headline(options: VerlOptions, trees: TreesUnderTest) -> list[str]:
    context = trees.context
    lines = [f"Bridge: {context.bridge.title}, {options.bridge}", f"verl:   {context.verl.title}, {options.verl}"]
    return [*lines, *(f"note: {remark}" for remark in context.remarks)]


@contextmanager
def trees_under_test(
    options: VerlOptions, request: LevelRequest, config: Config, revision: str = ""
) -> Iterator[TreesUnderTest]:
    """Both trees, checked and copied, for as long as the block lasts; of Bridge `revision`, where it is given. Raises
    UsageError, CheckoutError."""
    from ci_tasks.cli.given_options import overlay_sources

    specs = config.select_hosts(options.host)
    overlays = overlay_sources(options.with_)
    bridge, verl = Path(options.bridge), Path(options.verl)
    _check_trees(bridge, verl, () if revision else request.bridge_tests, overlays)
    scripts = {path: _script(verl, path) for path in (request.wrapper, request.script) if path}
    planned = trainings(request, scripts)
    contained = _are_contained(specs)
    if not options.image and contained:
        raise UsageError(
            f"host {specs[0].name} runs levels in a container, and no image is named",
            hint="--image verlai/verl:TAG, a vLLM-flavored tag unless another engine is tested (or VERL_IMAGE)",
        )
    # What a person said for this run, else for the hosts (of several the shortest), else what the level takes.
    limits = [spec.timeout_minutes for spec in specs if "timeout_minutes" in config.sources.get(spec.name, {})]
    job = partial(
        workflow,
        wrapper=scripts[request.wrapper],
        image=options.image,
        volumes=tuple(f"{path}:{path}" for path in (options.data, options.dummy_config) if path),
        minutes=options.timeout or min(limits, default=float(_MINUTES[request.level])),
        simulated=specs[0].simulate,
        contained=contained,
    )
    with TemporaryDirectory(prefix="ci-tasks-") as scratch:
        trees = Path(scratch) / "trees"
        trees.mkdir()
        made = copy_side_by_side({BRIDGE: bridge, VERL: verl}, trees, {BRIDGE: revision} if revision else {})
        context = LevelContext(
            request=request,
            bridge=made[BRIDGE],
            verl=made[VERL],
            command=options.command_line,
            host=options.host,
            image=options.image or "",
            simulated=specs[0].simulate,
            baseline=options.baseline or "",
            remarks=(
                *remarks.of_image(options.image or "", planned[0].env.get("ENGINE", "")),
                *remarks.of_trees(bridge, verl, request, overlays),
            ),
            scripts=scripts,
        )
        source = CheckoutSource(
            trees,
            f"{bridge} and {verl}",
            job(request, planned),
            given=GivenValues(overlays=overlays),
            conversions=all_conversions(made),
        )
        run_request = RunRequest(LABEL, host=options.host, keep=options.keep, by_runner=True, files=context.files())
        yield TreesUnderTest(source, context, planned, job, run_request)


def _are_contained(specs: Sequence[HostSpec]) -> bool:
    """Whether the hosts run a level in a container. Raises UsageError for hosts that need different scripts."""
    first = specs[0]
    for spec in specs[1:]:
        if (spec.runtime == "none", spec.simulate) != (first.runtime == "none", first.simulate):
            raise UsageError(
                f"hosts {first.name} and {spec.name} do not run one and the same level",
                hint="name hosts of one kind: only one of these simulates, or uses containers",
            )
    return first.runtime != "none"


def _check_trees(bridge: Path, verl: Path, tests: Sequence[str], overlays: Sequence[OverlaySource]) -> None:
    """Both checkouts are what they are said to be. Raises UsageError, CheckoutError."""
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
