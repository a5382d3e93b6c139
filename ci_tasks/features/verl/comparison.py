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
from ci_tasks.run.events import EventStream
from ci_tasks.trials import rules
from ci_tasks.trials.rules import AB, Metrics, Outcome, TrialRule, TrialVerdict
from ci_tasks.trials.trial import Trial, TrialRun

BASE, CANDIDATE = "base", "candidate"
_MARGIN = 0.05  # the drop of the mean reward that a Pass rules out
_SEED = 42  # verl's own default
_ACTOR = "actor_rollout_ref.actor"
_SEEDS = ("data.seed", f"{_ACTOR}.data_loader_seed", f"{_ACTOR}.megatron.seed", "critic.megatron.seed")
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
        sides = {BASE: stack.enter_context(trees_under_test(base, request, config, revision))}
        sides[CANDIDATE] = stack.enter_context(trees_under_test(options, request, config))
        titles = [side.context.bridge.title for side in sides.values()]
        pinned = {name: side.context.bridge.tree for name, side in sides.items()}
        verl, *others = {side.context.verl.tree for side in sides.values()}
        if pinned[BASE] == pinned[CANDIDATE]:
            raise UsageError(f"the candidate's tree is that of the base, {titles[0]}", hint="--base names another")
        if others:
            raise CheckoutError(f"{options.verl} changed while it was copied", hint="run it again")
        print(f"base: {titles[0]}; candidate: {titles[1]}; verl: {sides[BASE].context.verl.title}", flush=True)
        rule: TrialRule = AB(BASE, CANDIDATE, at_most=2 * options.repeat, screen=True)
        if request.level == 5:
            rule = Metrics(BASE, CANDIDATE, "reward", _MARGIN, options.repeat)
        more = {"verl": verl, "host": options.host, "request": repr(encode(request))}
        row = f"level {request.level}"
        with Trial("verl", pinned, [row], lambda run: [_run(sides[run.setting], run, events)], more=more) as trial:
            trial.run(lambda *_: rule, until=lambda: bool(_unclear(trial.outcomes)))
    if trial.is_interrupted:
        return EXIT_CANCELLED, None
    trial.path.unlink(missing_ok=True)  # the same command begins again: only an interrupted one goes on
    word, sentence = conclusion(trial.outcomes, trial.verdict(row))
    print(f"\nResult: {word} - {sentence}")
    last = {one.setting: one.run for one in trial.outcomes}
    if len(last) == 2:
        print(f"settings, metrics, time and memory side by side: ci-tasks diff {last[BASE]} {last[CANDIDATE]}")
    code = RESULT_CODES[word]
    return code, LevelComparison(word, code, sentence, titles[0], titles[1], tuple(trial.outcomes))


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
    pair = run.number - 1 if run.setting == CANDIDATE and level != 5 else run.number
    rollout = verl / "verl/trainer/config/rollout/rollout.yaml"
    has_seed = rollout.is_file() and re.search("^seed:", rollout.read_text("utf-8"), re.MULTILINE)
    names = [*_SEEDS, *(["actor_rollout_ref.rollout.seed"] if has_seed else [])]
    return [f"++{name}={_SEED + max(pair, 1) - 1}" for name in names]


def _run(trees: LevelTrees, run: TrialRun, events: EventStream | None) -> Outcome:
    """A run of one side, judged as its level is. Raises KeyboardInterrupt after ^C."""
    asked = trees.context.request
    asked = replace(asked, overrides=(*asked.overrides, *seeds(trees.path / "verl", run, asked.level)))
    seeded = replace(trees, context=replace(trees.context, request=asked))
    done = seeded.execute(events)
    if done is None or not done.records or done.records[0].status == CANCELLED:
        raise KeyboardInterrupt
    record, log = done.records[0], done.logs[0]
    summary, facts = evaluate(seeded.context, record, os.path.dirname(log))
    training = facts.trainings.get(seeded.trainings[-1].name)
    rewards = values_of(training.metrics, REWARD) if training else []
    last = rewards[len(rewards) // 2 :] if len(rewards) > 3 else []
    # At level 5 the curves decide, whatever the level's own criteria say of a training that came to its end.
    learned = asked.level == 5 and training and training.exit_code == 0 and last
    return Outcome(
        run.setting,
        run.rows[0],
        rules.PASSED if learned else _STATUSES.get(summary.result, summary.result),
        signature=re.sub(r"\d+|/\S+", "…", summary.sentence),
        reason="" if summary.result == PASS else f"{summary.result}: {summary.sentence}",
        run=record.id,
        log=log,
        image=image_identity(record),
        gpus=", ".join(sorted(gpu.name for gpu in record.environment.gpus)),
        metrics={"reward": fmean(last), "reward error": stdev(last) / len(last) ** 0.5} if last else {},
    )
