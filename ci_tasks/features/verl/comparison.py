"""`verl --base`: a level with the base Bridge and with the candidate, until a rule of trials decides.

Below level 5 the question is whether the candidate fails more often (AB: a candidate that passes is not compared), at
level 5 whether its reward is lower (Metrics: both sides of a pair have one seed, each pair another). Neither counts
where the sides did not run alike: with the same resolved settings, image and GPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.config import Config
from ci_tasks.errors import EXIT_CANCELLED, CheckoutError, UsageError
from ci_tasks.features.verl.judge.learning import REWARD, series
from ci_tasks.features.verl.level_context import read_context
from ci_tasks.features.verl.levels.levels import LevelRequest
from ci_tasks.features.verl.levels.summary import BLOCKED, FAIL, NOT_PROVEN, PASS
from ci_tasks.features.verl.options import VerlOptions
from ci_tasks.features.verl.run_levels import BRIDGE_HAS, TreesUnderTest, trees_under_test
from ci_tasks.features.verl.run_summary import RESULT_CODES, EvaluatedRun, evaluate, image_identity
from ci_tasks.features.verl.settings import different, flat
from ci_tasks.records import CANCELLED
from ci_tasks.resources import user_path
from ci_tasks.results.load import load_record
from ci_tasks.run.events import EventStream
from ci_tasks.run.label import execute_label
from ci_tasks.run.request import ExecutionOptions
from ci_tasks.trials import rules
from ci_tasks.trials.rules import AB, Metrics, Outcome, TrialVerdict
from ci_tasks.trials.trial import Trial, TrialRun

BASE, CANDIDATE = "base", "candidate"
_LEARNING_LEVEL = 5
_SEED = 42  # verl's own default; each pair adds one, so that pairs differ and their sides do not
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
    """`result` is Pass, Fail, Not proven or Blocked. `differences` are settings, images or GPUs that are not the same
    on both sides: then there is no verdict. The metric of `runs` is the mean reward of the last half of the steps."""

    result: str
    exit_code: int
    sentence: str
    base: str
    candidate: str
    differences: tuple[str, ...]
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

        def perform(runs: Sequence[TrialRun]) -> Iterator[Outcome]:
            return (_run(theirs if run.setting == BASE else ours, run, config, events) for run in runs)

        rule = AB(BASE, CANDIDATE, at_most=2 * options.repeat, screen=True)
        curves = Metrics(BASE, CANDIDATE, "reward", options.margin, options.repeat)
        pinned = {BASE: theirs.context.bridge.tree, CANDIDATE: ours.context.bridge.tree}
        more = {"verl": ours.context.verl.tree, "host": options.host, "request": repr(encode(request))}
        with Trial("verl", pinned, [f"level {request.level}"], perform, more=more) as trial:
            trial.run(
                lambda *_: curves if request.level == _LEARNING_LEVEL else rule,
                until=lambda: bool(_is_unclear(trial.outcomes)),
            )
    if trial.is_interrupted:
        return EXIT_CANCELLED, None
    trial.path.unlink(missing_ok=True)  # the same command begins again: only an interrupted one goes on
    word, sentence = conclusion(trial.outcomes, trial.verdict(trial.rows[0]))
    found, outcomes = tuple(differences(trial.outcomes)), tuple(trial.outcomes)
    result = LevelComparison(word, RESULT_CODES[word], sentence, *titles, found, outcomes)
    print("\n".join(["", f"Result: {word} - {sentence}", *(f"- {line}" for line in found)]))
    last = {one.setting: one.run for one in outcomes}
    if len(last) == 2:
        print(f"settings, metrics, time and memory side by side: ci-tasks diff {last[BASE]} {last[CANDIDATE]}")
    return result.exit_code, result


def conclusion(outcomes: Sequence[Outcome], verdict: TrialVerdict) -> tuple[str, str]:
    """The result in the levels' words, and its sentence."""
    if unclear := _is_unclear(outcomes):
        return NOT_PROVEN, unclear
    word = _RESULTS.get(verdict.word, NOT_PROVEN)
    # Alike may mean that neither side learns: a candidate that missed its level's own criteria is no Pass.
    missed = [one for one in outcomes if one.setting == CANDIDATE and one.reason]
    if word == PASS and missed:
        return NOT_PROVEN, f"{verdict.why}, but {missed[0].run} is {missed[0].reason}"
    promise = f" (wrong in at most {1 - verdict.promise:.0%})" if verdict.promise else ""
    return word, f"{verdict.word}: {verdict.why}{promise}"


def _is_unclear(outcomes: Sequence[Outcome]) -> str:
    """What ends it without a verdict, "" for nothing."""
    if found := differences(outcomes):
        return f"the sides did not run alike: {'; '.join(found[:3])}"
    return next((f"{one.run} is {one.reason}" for one in outcomes if one.status == NOT_PROVEN), "")


def differences(outcomes: Sequence[Outcome]) -> list[str]:
    """What is not the same in a run of the candidate as in the base's, or was not seen in one that passed."""
    lines: list[str] = []
    sides = ([one for one in outcomes if one.setting == side and one.counts] for side in (BASE, CANDIDATE))
    for pair in zip(*sides, strict=False):
        theirs, ours = (_settings(os.path.dirname(one.log)) for one in pair)
        if theirs and ours:
            lines += different(BASE, theirs, ours)
        elif all(one.status == rules.PASSED for one in pair):  # one that failed early has none
            lines.append(f"the resolved settings of the {CANDIDATE if theirs else BASE} were not seen")
        lines += different(BASE, *({"image": one.image, "GPUs": one.gpus} for one in pair))
    return list(dict.fromkeys(lines))[:12]


def seeds(verl: Path, pair: int) -> list[str]:
    """Overrides that give a pair its seed, wherever this verl has one. Newer ones have a seed of the rollout."""
    rollout = verl / _ROLLOUT
    has_seed = rollout.is_file() and re.search("^seed:", rollout.read_text("utf-8"), re.MULTILINE)
    names = [*_SEEDS, "critic.megatron.seed", *(["actor_rollout_ref.rollout.seed"] if has_seed else [])]
    return [f"++{name}={_SEED + pair - 1}" for name in names]


def _run(trees: TreesUnderTest, run: TrialRun, config: Config, events: EventStream | None) -> Outcome:
    """A run of one side, judged as its level is. Raises KeyboardInterrupt after ^C."""
    trees = trees.with_overrides(seeds(trees.source.path / "verl", run.number))
    done = execute_label(trees.source, config, trees.run_request, ExecutionOptions(events=events))
    if done is None or not done.records or done.records[0].status == CANCELLED:
        raise KeyboardInterrupt
    record, log = done.records[0], done.logs[0]
    seen = _evaluated(os.path.dirname(log))
    word, sentence = seen.summary.result, seen.summary.sentence
    training = seen.facts.trainings.get(trees.trainings[-1].name)
    rewards = [value for _, value in series(training.metrics, REWARD)] if training else []
    last = rewards[len(rewards) // 2 :] if len(rewards) > 3 else []
    # At level 5 the curves decide, whatever the level's own criteria say of a training that came to its end.
    learned = trees.context.request.level == _LEARNING_LEVEL and training and training.exit_code == 0 and last
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


@cache
def _evaluated(directory: str) -> EvaluatedRun:
    """A run of a side, from its directory: the journal may name one that an earlier command has made."""
    context = read_context(directory)
    assert context is not None  # its run was started here
    return evaluate(context, load_record(RunDir(directory)), directory)


def _settings(directory: str) -> dict[str, str]:
    """The resolved settings of all trainings by training and name, without the run's own directory, which may be named
    by way of a link or a mount; empty if those of a training were not seen."""
    own = "/".join(os.path.dirname(read_plan(RunDir(directory)).workspace).split("/")[-2:])
    found: dict[str, str] = {}
    for name, training in _evaluated(directory).facts.trainings.items():
        if not training.settings:
            return {}
        values = flat(training.settings.values, f"{name}: ")
        found |= {key: re.sub(rf"[^\s'\"]*{re.escape(own)}(?=[/'\"])", "RUN", value) for key, value in values.items()}
    return found
