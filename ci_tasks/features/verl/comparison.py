"""`verl --base`: a level with the base Bridge and with the candidate, until a rule of trials decides.

Below level 5 the question is whether the candidate fails more often (AB: a candidate that passes is not compared), at
level 5 whether its reward is lower (Metrics). Both sides run the same verl with the same request on one host; both
sides of a pair have one seed, each pair another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.config import Config
from ci_tasks.errors import EXIT_CANCELLED, CheckoutError, UsageError
from ci_tasks.features.verl.judge.learning import REWARD, values_of
from ci_tasks.features.verl.judge.records import BLOCKED, FAIL, NOT_PROVEN, PASS, RESULT_CODES
from ci_tasks.features.verl.level_run import BRIDGE_HAS, LevelTrees, evaluate, image_identity, trees_under_test
from ci_tasks.features.verl.levels.levels import LevelRequest
from ci_tasks.features.verl.options import VerlOptions
from ci_tasks.records import CANCELLED
from ci_tasks.resources import user_path
from ci_tasks.run.checkout_source import ExecutionOptions
from ci_tasks.run.events import EventStream
from ci_tasks.run.label import execute_label
from ci_tasks.trials import rules
from ci_tasks.trials.rules import AB, Metrics, Outcome, TrialVerdict
from ci_tasks.trials.trial import Trial, TrialRun

BASE, CANDIDATE = "base", "candidate"
_LEARNING_LEVEL = 5
_MARGIN = 0.05  # the drop of the mean reward that a Pass rules out
_SEED = 42  # verl's own default
_SEEDS = ("data.seed", "actor_rollout_ref.actor.data_loader_seed", "actor_rollout_ref.actor.megatron.seed")
_ROLLOUT = "verl/trainer/config/rollout/rollout.yaml"
_STATUSES = {PASS: rules.PASSED, FAIL: rules.FAILED, BLOCKED: rules.BLOCKED}  # Not proven says nothing of the code
_RESULTS = {
    **dict.fromkeys((rules.PASSES, rules.FINE, rules.FIXED, rules.NOT_WORSE), PASS),
    **dict.fromkeys((rules.YOURS, rules.WORSE), FAIL),
    rules.BLOCKED: BLOCKED,
}


@dataclass(frozen=True)
class LevelComparison:
    """`result` is Pass, Fail, Not proven or Blocked. The metric of `runs` is the mean reward of the last half of the
    steps."""

    result: str
    exit_code: int
    sentence: str
    base: str
    candidate: str
    runs: tuple[Outcome, ...]


def compare(
    options: VerlOptions, request: LevelRequest, config: Config, *, events: EventStream | None = None
) -> tuple[int, LevelComparison | None]:
    """Run both sides until the result is clear, and print it. Returns its exit code; no result after ^C."""
    if len(config.select_hosts(options.host)) > 1:
        raise UsageError("--base runs both sides on one host", hint="name one host: two differ in more than Bridge")
    base, revision = options, options.base or ""
    if (user_path(revision) / BRIDGE_HAS).is_dir():
        base, revision = replace(options, bridge=str(user_path(revision).absolute())), ""
    with ExitStack() as stack:
        theirs = stack.enter_context(trees_under_test(base, request, config, revision))
        ours = stack.enter_context(trees_under_test(options, request, config))
        titles = theirs.context.bridge.title, ours.context.bridge.title
        if theirs.context.bridge.tree == ours.context.bridge.tree:
            raise UsageError(f"the candidate's tree is that of the base, {titles[0]}", hint="--base names another")
        if theirs.context.verl.tree != ours.context.verl.tree:
            raise CheckoutError(f"{options.verl} changed while it was copied", hint="run it again")
        print(f"base: {titles[0]}; candidate: {titles[1]}; verl: {ours.context.verl.title}", flush=True)

        def perform(run: TrialRun) -> list[Outcome]:
            return [_run(theirs if run.setting == BASE else ours, run, events)]

        rule = AB(BASE, CANDIDATE, at_most=2 * options.repeat, screen=True)
        curves = Metrics(BASE, CANDIDATE, "reward", _MARGIN, options.repeat)
        pinned = {BASE: theirs.context.bridge.tree, CANDIDATE: ours.context.bridge.tree}
        more = {"verl": ours.context.verl.tree, "host": options.host, "request": repr(encode(request))}
        with Trial("verl", pinned, [f"level {request.level}"], perform, more=more) as trial:
            trial.run(
                lambda *_: curves if request.level == _LEARNING_LEVEL else rule,
                until=lambda: bool(_unclear(trial.outcomes)),
            )
    if trial.is_interrupted:
        return EXIT_CANCELLED, None
    trial.path.unlink(missing_ok=True)  # the same command begins again: only an interrupted one goes on
    word, sentence = conclusion(trial.outcomes, trial.verdict(trial.rows[0]))
    result = LevelComparison(word, RESULT_CODES[word], sentence, *titles, tuple(trial.outcomes))
    print(f"\nResult: {word} - {sentence}")
    last = {one.setting: one.run for one in trial.outcomes}
    if len(last) == 2:
        print(f"settings, metrics, time and memory side by side: ci-tasks diff {last[BASE]} {last[CANDIDATE]}")
    return result.exit_code, result


def conclusion(outcomes: Sequence[Outcome], verdict: TrialVerdict) -> tuple[str, str]:
    """The result in the levels' words, and its sentence."""
    if unclear := _unclear(outcomes):
        return NOT_PROVEN, unclear
    word = _RESULTS.get(verdict.word, NOT_PROVEN)
    # Alike may mean that neither side learns: a candidate that missed its level's own criteria is no Pass.
    missed = [one for one in outcomes if one.setting == CANDIDATE and one.reason]
    if word == PASS and missed:
        return NOT_PROVEN, f"{verdict.why}, but {missed[0].run} is {missed[0].reason}"
    promise = f" (wrong in at most {1 - verdict.promise:.0%})" if verdict.promise else ""
    return word, f"{verdict.word}: {verdict.why}{promise}"


def _unclear(outcomes: Sequence[Outcome]) -> str:
    """What ends it without a verdict, "" for nothing."""
    for what in ("image", "gpus"):
        if len(seen := {getattr(one, what) for one in outcomes if one.counts}) > 1:
            return f"the sides did not run alike: {what} {' and '.join(sorted(seen))}"
    return next((f"{one.run} is {one.reason}" for one in outcomes if one.status == NOT_PROVEN), "")


def seeds(verl: Path, run: TrialRun, level: int) -> list[str]:
    """Overrides that give a run the seed of its pair, wherever this verl has one. Newer ones have a seed of the
    rollout. Below level 5 the candidate's first run is the reason to compare, and is in no pair."""
    pair = run.number - 1 if run.setting == CANDIDATE and level != _LEARNING_LEVEL else run.number
    rollout = verl / _ROLLOUT
    has_seed = rollout.is_file() and re.search("^seed:", rollout.read_text("utf-8"), re.MULTILINE)
    names = [*_SEEDS, "critic.megatron.seed", *(["actor_rollout_ref.rollout.seed"] if has_seed else [])]
    return [f"++{name}={_SEED + max(pair, 1) - 1}" for name in names]


def _run(trees: LevelTrees, run: TrialRun, events: EventStream | None) -> Outcome:
    """A run of one side, judged as its level is. Raises KeyboardInterrupt after ^C."""
    level = trees.context.request.level
    seeded = trees.with_overrides(seeds(trees.path / "verl", run, level))
    source, request = seeded.job()
    done = execute_label(source, trees.config, request, ExecutionOptions(events=events))
    if done is None or not done.records or done.records[0].status == CANCELLED:
        raise KeyboardInterrupt
    record, log = done.records[0], done.logs[0]
    summary, facts = evaluate(seeded.context, record, os.path.dirname(log))
    word, sentence = summary.result, summary.sentence
    training = facts.trainings.get(seeded.trainings[-1].name)
    rewards = values_of(training.metrics, REWARD) if training else []
    last = rewards[len(rewards) // 2 :] if len(rewards) > 3 else []
    # At level 5 the curves decide, whatever the level's own criteria say of a training that came to its end.
    learned = level == _LEARNING_LEVEL and training and training.exit_code == 0 and last
    return Outcome(
        run.setting,
        run.rows[0],
        rules.PASSED if learned else _STATUSES.get(word, word),
        signature=re.sub(r"\d+|/\S+", "…", sentence),
        reason="" if word == PASS else f"{word}: {sentence}",
        run=record.id,
        log=log,
        image=image_identity(record),
        gpus=", ".join(sorted(gpu.name for gpu in record.environment.gpus)),
        metrics={"reward": fmean(last), "reward error": stdev(last) / len(last) ** 0.5} if last else {},
    )
