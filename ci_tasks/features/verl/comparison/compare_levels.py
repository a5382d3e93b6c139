"""`verl --base`: a level with the base Bridge and with the candidate, in turn, until the curves decide.

trees      both Bridges and one verl, copied before anything runs
pair       one training of each side, in random order, with one seed of its own, on one host
settings   what the sides ran with, compared first: a difference ends it without a verdict on learning
decide     after each pair: see sequential_test.py
report     the result, and what changed beside the reward
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.records import Checkout
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.config import Config
from ci_tasks.errors import EXIT_CANCELLED, CheckoutError, UsageError, counted
from ci_tasks.features.verl.comparison import report, sequential_test
from ci_tasks.features.verl.comparison.observed_run import BASE, CANDIDATE, ObservedRun, links_of, observe
from ci_tasks.features.verl.comparison.result import (
    LEARNING_LEVEL,
    LearningComparison,
    LevelComparison,
    Pair,
    compared_run,
    differences,
    early_end,
    quantities,
    scores,
    verdict,
)
from ci_tasks.features.verl.comparison.sequential_test import SequentialDecision
from ci_tasks.features.verl.run_levels import BRIDGE_HAS, TreesUnderTest, VerlRequest, run_request, trees_under_test
from ci_tasks.features.verl.run_summary import RESULT_CODES, evaluate, image_identity
from ci_tasks.records import CANCELLED
from ci_tasks.resources import user_path
from ci_tasks.run.events import EventStream
from ci_tasks.run.interrupts import noticed
from ci_tasks.run.label import execute_label
from ci_tasks.run.request import ExecutionOptions
from ci_tasks.safe_output import terminal_width
from ci_tasks.trials.runner import QuietView

_PAIRS = 5
_SEED = 42  # verl's own default; each pair adds one, so that pairs differ and their sides do not
_ROLLOUT = "verl/trainer/config/rollout/rollout.yaml"


@dataclass(frozen=True)
class ComparisonRequest:
    """`candidate` is what runs; `base` a revision of its Bridge, or a directory. `repeat` is the most pairs."""

    candidate: VerlRequest
    base: str
    repeat: int | None = None
    margin: float = sequential_test.MARGIN

    @property
    def planned(self) -> int:
        return self.repeat or (_PAIRS if self.candidate.request.level == LEARNING_LEVEL else 1)

    @property
    def base_side(self) -> VerlRequest:
        """The same with the base's Bridge: a checkout of Bridge if `base` names one, else a revision."""
        directory = user_path(self.base).absolute()
        if (directory / BRIDGE_HAS).is_dir():
            return replace(self.candidate, bridge=directory)
        return replace(self.candidate, bridge_revision=self.base)


def compare(
    request: ComparisonRequest, config: Config, *, events: EventStream | None = None
) -> tuple[int, LevelComparison | None]:
    """Run pairs until the result is clear, and print it. Returns its exit code; no result after ^C."""
    if len(config.select_hosts(request.candidate.host)) > 1:
        raise UsageError("--base runs both sides on one host", hint="name one host: two differ in more than Bridge")
    with ExitStack() as stack:
        sides = {
            BASE: stack.enter_context(trees_under_test(request.base_side, config)),
            CANDIDATE: stack.enter_context(trees_under_test(request.candidate, config)),
        }
        _check_sides(sides[BASE].context.bridge, sides[CANDIDATE].context.bridge)
        if sides[BASE].context.verl.tree != sides[CANDIDATE].context.verl.tree:
            raise CheckoutError(f"{request.candidate.verl} changed while it was copied", hint="run it again")
        print("\n".join(_announcement(request, sides[BASE], sides[CANDIDATE])), flush=True)
        comparison = _Comparison(request, config, sides, events)
        interrupted = stack.enter_context(noticed())
        try:
            for pair in comparison.pairs():
                if pair is None or interrupted():
                    return EXIT_CANCELLED, None
        except KeyboardInterrupt:
            return EXIT_CANCELLED, None
    result = comparison.finish()
    return result.exit_code, result


def _check_sides(base: Checkout, candidate: Checkout) -> None:
    if base.tree == candidate.tree:
        raise UsageError(
            f"the candidate's tree is that of the base, {base.title}", hint="--base REV|DIR names another Bridge"
        )


def _announcement(request: ComparisonRequest, base: TreesUnderTest, candidate: TreesUnderTest) -> list[str]:
    count = request.planned
    return [
        f"Base:      {base.context.bridge.title}, {request.base}",
        f"Candidate: {candidate.context.bridge.title}, {request.candidate.bridge}",
        f"verl:      {candidate.context.verl.title}, {request.candidate.verl}",
        *(f"note: {remark}" for remark in candidate.context.remarks),
        f"at most {counted(count, 'pair')} of level {request.candidate.request.level} on "
        f"{request.candidate.host}, one seed and the same data for both sides of each",
    ]


def seeds(verl: Path, pair: int) -> list[str]:
    """Overrides that give a pair its seed, wherever this verl has one. Newer ones have a seed of the rollout."""
    seed = _SEED + pair - 1
    names = [
        "data.seed",
        "actor_rollout_ref.actor.data_loader_seed",
        "actor_rollout_ref.actor.megatron.seed",
        "critic.megatron.seed",
    ]
    rollout = verl / _ROLLOUT
    if rollout.is_file() and any(line.startswith("seed:") for line in rollout.read_text("utf-8").splitlines()):
        names.append("actor_rollout_ref.rollout.seed")
    return [f"++{name}={seed}" for name in names]


@dataclass
class _Comparison:
    request: ComparisonRequest
    config: Config
    sides: dict[str, TreesUnderTest]
    events: EventStream | None

    def __post_init__(self) -> None:
        self.done: list[Pair] = []
        self.decision: SequentialDecision | None = None

    @property
    def learns(self) -> bool:
        return self.request.candidate.request.level == LEARNING_LEVEL

    def pairs(self) -> Iterator[Pair | None]:
        """Each pair as it ends, as long as more are needed; None where one was cancelled."""
        for number in range(1, self.request.planned + 1):
            runs: dict[str, ObservedRun] = {}
            # Which side is first changes at random: a host that warms up, or fills, is not read as a difference.
            for side in random.sample((BASE, CANDIDATE), 2):
                run = self._train(side, number)
                if run is None:
                    yield None
                    return
                runs[side] = run
                print(report.progress(run, self.request.planned), flush=True)
            self.done.append((runs[BASE], runs[CANDIDATE]))
            yield self.done[-1]
            if early_end(self.done, self.request.candidate.request.level) or self._is_decided():
                return

    def _is_decided(self) -> bool:
        if not self.learns:
            return False
        self.decision = sequential_test.decide(scores(self.done), self.request.planned, self.request.margin)
        return bool(self.decision.outcome)

    def _train(self, side: str, number: int) -> ObservedRun | None:
        options = self.request.base_side if side == BASE else self.request.candidate
        trees = self.sides[side].with_overrides(seeds(self.request.candidate.verl, number))
        how = ExecutionOptions(events=self.events)
        done = execute_label(trees.source, self.config, run_request(options, trees), how, view=QuietView(side, print))
        if done is None or not done.records or done.records[0].status == CANCELLED:
            return None
        record, log = done.records[0], done.logs[0]
        directory = os.path.dirname(log)
        seen = evaluate(trees.context, record, directory)
        outcome = (seen.summary.result, seen.summary.sentence)
        last = trees.trainings[-1]
        seen_as = os.path.dirname(read_plan(RunDir(directory)).workspace)  # on the host, and in its container
        return observe(
            side,
            number,
            record,
            directory,
            outcome,
            seen.facts,
            seen.evidence,
            last,
            _links(log),
            seen_as,
            image_identity(record),
        )

    def finish(self) -> LevelComparison:
        """Print the result."""
        decision = self.decision
        if self.learns and decision is None:
            decision = sequential_test.decide(scores(self.done), len(self.done), self.request.margin)
        word, sentence = verdict(self.done, decision)
        runs = tuple(compared_run(run) for pair in self.done for run in pair)
        result = LevelComparison(
            result=word,
            exit_code=RESULT_CODES[word],
            sentence=sentence,
            level=self.request.candidate.request.level,
            base=self.sides[BASE].context.bridge.title,
            candidate=self.sides[CANDIDATE].context.bridge.title,
            verl=self.sides[CANDIDATE].context.verl.title,
            host=self.request.candidate.host,
            pairs=len(self.done),
            planned=self.request.planned,
            differences=tuple(differences(self.done)),
            learning=_learning(decision, self.request.margin) if decision and not early_end(self.done, 0) else None,
            quantities=quantities(self.done),
            runs=runs,
        )
        print("\n".join(["", *report.text(result, terminal_width())]), flush=True)
        return result


def _learning(decision: SequentialDecision, margin: float) -> LearningComparison:
    estimate = decision.difference
    known = estimate.mean == estimate.mean
    bounded = abs(estimate.low) != float("inf")
    return LearningComparison(
        outcome=decision.outcome or sequential_test.NOT_SEEN,
        why=decision.why,
        margin=margin,
        error=sequential_test.ERROR,
        difference=estimate.mean if known else None,
        low=estimate.low if bounded else None,
        high=estimate.high if bounded else None,
    )


def _links(log: str) -> Sequence[str]:
    found: list[str] = []
    with open(log, "rb") as source:
        for line in source:
            found += links_of(line)
    return found
