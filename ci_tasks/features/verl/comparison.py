"""`verl --base`: a level with the base Bridge and with the candidate, until a rule of trials decides.

Below level 5 the question is whether the candidate fails more often (AB: a candidate that passes is not compared), at
level 5 whether its reward is lower (Metrics: both sides of a pair have one seed, each pair another). Before either
counts, both sides have to have run alike: the same resolved settings, image and GPUs.
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
from ci_tasks.features.verl.command import VerlOptions
from ci_tasks.features.verl.judge.learning import REWARD, series
from ci_tasks.features.verl.level_context import read_context
from ci_tasks.features.verl.levels.levels import LevelRequest
from ci_tasks.features.verl.levels.summary import BLOCKED, FAIL, NOT_PROVEN, PASS
from ci_tasks.features.verl.run_levels import BRIDGE_HAS, TreesUnderTest, trees_under_test
from ci_tasks.features.verl.run_summary import RESULT_CODES, EvaluatedRun, evaluate, image_identity
from ci_tasks.features.verl.settings import different, flat
from ci_tasks.records import CANCELLED
from ci_tasks.resources import user_path
from ci_tasks.results.read_record import load_record
from ci_tasks.run.events import EventStream
from ci_tasks.run.label import execute_label
from ci_tasks.run.row_execution import ExecutionOptions
from ci_tasks.trials.rules import AB, Metrics, Outcome, Rule, Verdict
from ci_tasks.trials.trial import Run, Trial

BASE, CANDIDATE = "base", "candidate"
_LEARNING_LEVEL = 5
_SEED = 42  # verl's own default; each pair adds one, so that pairs differ and their sides do not
_SEEDS = ("data.seed", "actor_rollout_ref.actor.data_loader_seed", "actor_rollout_ref.actor.megatron.seed")
_ROLLOUT = "verl/trainer/config/rollout/rollout.yaml"
_PASSES = ("passes", "fine", "fixed", "not worse")
_RESULTS = {**dict.fromkeys(_PASSES, PASS), "yours": FAIL, "worse": FAIL, "blocked": BLOCKED}


@dataclass(frozen=True)
class ComparedRun:
    """A run of one side. `reward` is the mean of the last half of its steps, null if there are none; `result` and `why`
    are those of the level's own summary."""

    side: str
    id: str
    directory: str
    result: str
    why: str
    reward: float | None = None
    image: str = ""
    gpus: str = ""


@dataclass(frozen=True)
class LevelComparison:
    """`result` is Pass, Fail, Not proven or Blocked. `differences` are settings, images or GPUs that are not the same
    on both sides: then there is no verdict."""

    result: str
    exit_code: int
    sentence: str
    level: int
    base: str
    candidate: str
    verl: str
    host: str
    differences: tuple[str, ...]
    runs: tuple[ComparedRun, ...]


def compare(
    options: VerlOptions, request: LevelRequest, config: Config, *, events: EventStream | None = None
) -> tuple[int, LevelComparison | None]:
    """Run both sides until the result is clear, and print it. Returns its exit code; no result after ^C."""
    if len(config.select_hosts(options.host)) > 1:
        raise UsageError("--base runs both sides on one host", hint="name one host: two differ in more than Bridge")
    base = str(user_path(options.base or "").absolute())
    is_tree = (Path(base) / BRIDGE_HAS).is_dir()
    base_options = replace(options, bridge=base) if is_tree else options
    with ExitStack() as stack:
        revision = "" if is_tree else options.base or ""
        sides = {
            BASE: stack.enter_context(trees_under_test(base_options, request, config, revision)),
            CANDIDATE: stack.enter_context(trees_under_test(options, request, config)),
        }
        theirs, ours = sides[BASE].context, sides[CANDIDATE].context
        if theirs.bridge.tree == ours.bridge.tree:
            raise UsageError(
                f"the candidate's tree is that of the base, {theirs.bridge.title}",
                hint="--base REV|DIR names another Bridge",
            )
        if theirs.verl.tree != ours.verl.tree:
            raise CheckoutError(f"{options.verl} changed while it was copied", hint="run it again")
        print(f"Base:      {theirs.bridge.title}, {options.base}\nCandidate: {ours.bridge.title}, {options.bridge}")
        print("\n".join([f"verl:      {ours.verl.title}", *(f"note: {each}" for each in ours.remarks)]), flush=True)
        pinned = {side: trees.context.bridge.tree for side, trees in sides.items()}
        more = {"verl": ours.verl.tree, "host": options.host, "image": ours.image, "request": repr(encode(request))}

        def perform(runs: Sequence[Run]) -> Iterator[Outcome]:
            for run in runs:
                yield _run(sides[run.setting], run, config, events)

        with Trial("verl", pinned, [f"level {request.level}"], perform, more=more) as trial:
            trial.run(lambda _row, _known: _Alike(_rule(options, request), request.level == _LEARNING_LEVEL))
    if trial.is_interrupted:
        return EXIT_CANCELLED, None
    outcomes, runs = trial.outcomes, tuple(_compared(one) for one in trial.outcomes)
    word, sentence = conclusion(trial.verdict(trial.rows[0]), runs)
    result = LevelComparison(
        result=word,
        exit_code=RESULT_CODES[word],
        sentence=sentence,
        level=request.level,
        base=theirs.bridge.title,
        candidate=ours.bridge.title,
        verl=ours.verl.title,
        host=options.host,
        differences=tuple(differences(outcomes)),
        runs=runs,
    )
    print("\n".join(["", f"Result: {word} - {sentence}", *(f"- {line}" for line in result.differences)]))
    if {one.setting for one in outcomes} == {BASE, CANDIDATE}:
        last = {one.setting: one.run for one in outcomes}
        print(f"settings, metrics, time and memory side by side: ci-tasks diff {last[BASE]} {last[CANDIDATE]}")
    return result.exit_code, result


def conclusion(verdict: Verdict, runs: Sequence[ComparedRun]) -> tuple[str, str]:
    """The result in the levels' words, and its sentence. Alike may mean that neither side learns: a candidate that
    missed its level's own criteria is no Pass."""
    word = _RESULTS.get(verdict.word, NOT_PROVEN)
    missed = [run for run in runs if run.side == CANDIDATE and run.result != PASS]
    if word == PASS and missed:
        return NOT_PROVEN, f"{verdict.why}, but {missed[0].id} is {missed[0].result}: {missed[0].why}"
    promise = f" (wrong in at most {1 - verdict.promise:.0%})" if verdict.promise else ""
    return word, f"{verdict.word}: {verdict.why}{promise}"


def _rule(options: VerlOptions, request: LevelRequest) -> Rule:
    if request.level == _LEARNING_LEVEL:
        return Metrics(BASE, CANDIDATE, "reward", options.margin, options.repeat)
    return AB(BASE, CANDIDATE, at_most=2 * options.repeat, screen=True)


@dataclass(frozen=True)
class _Alike:
    """A rule that counts only while both sides run alike."""

    rule: Rule
    learns: bool

    def next(self, outcomes: Sequence[Outcome]) -> Sequence[str] | Verdict:
        if found := differences(outcomes):
            return Verdict("cannot tell", f"the sides did not run alike: {'; '.join(found[:3])}")
        return self.rule.next(outcomes)


def differences(outcomes: Sequence[Outcome]) -> list[str]:
    """What is not the same in a run of the candidate as in the base's, or was not seen there."""
    lines: list[str] = []
    bases, candidates = ([one for one in outcomes if one.setting == side] for side in (BASE, CANDIDATE))
    for theirs, ours in zip(bases, candidates, strict=False):
        if not (theirs.counts and ours.counts):
            continue
        settings = {one.setting: _settings(os.path.dirname(one.log)) for one in (theirs, ours)}
        unseen = [side for side, values in settings.items() if not values]
        lines += [f"the resolved settings of the {side} were not seen" for side in unseen]
        lines += different(BASE, settings[BASE], settings[CANDIDATE]) if not unseen else []
        machines = [{"image": one.image, "GPUs": one.gpus} for one in (theirs, ours)]
        lines += different(BASE, *machines)
    return list(dict.fromkeys(lines))[:12]


def seeds(verl: Path, pair: int) -> list[str]:
    """Overrides that give a pair its seed, wherever this verl has one. Newer ones have a seed of the rollout."""
    rollout = verl / _ROLLOUT
    has_seed = rollout.is_file() and re.search("^seed:", rollout.read_text("utf-8"), re.MULTILINE)
    names = [*_SEEDS, "critic.megatron.seed", *(["actor_rollout_ref.rollout.seed"] if has_seed else [])]
    return [f"++{name}={_SEED + pair - 1}" for name in names]


def _run(trees: TreesUnderTest, run: Run, config: Config, events: EventStream | None) -> Outcome:
    """A run of one side, judged as its level is. Raises KeyboardInterrupt after ^C."""
    seeded = trees.with_overrides(seeds(Path(trees.source.path, "verl"), run.number))
    done = execute_label(seeded.source, config, seeded.run_request, ExecutionOptions(events=events))
    if done is None or not done.records or done.records[0].status == CANCELLED:
        raise KeyboardInterrupt
    record, log = done.records[0], done.logs[0]
    seen = _evaluated(os.path.dirname(log))
    training = seen.facts.trainings.get(seeded.trainings[-1].name)
    rewards = [value for _, value in series(training.metrics, REWARD)] if training else []
    last = rewards[len(rewards) // 2 :]
    learns, word = seeded.context.request.level == _LEARNING_LEVEL, seen.summary.result
    # At level 5 the curves decide, whatever the level's own criteria say of a training that came to its end.
    is_complete = training is not None and training.exit_code == 0 and len(last) > 1
    status = {PASS: "passed", FAIL: "failed"}.get(word, word.lower())
    return Outcome(
        run.setting,
        run.rows[0],
        "passed" if learns and is_complete else status,
        signature=re.sub(r"\d+|/\S+", "…", seen.summary.sentence),
        reason=seen.summary.sentence,
        run=record.id,
        log=log,
        host=record.host or "",
        image=image_identity(record),
        gpus=", ".join(sorted(gpu.name for gpu in record.environment.gpus)),
        metrics={"reward": fmean(last), "reward error": stdev(last) / len(last) ** 0.5} if len(last) > 1 else {},
    )


def _compared(one: Outcome) -> ComparedRun:
    summary, directory = _evaluated(os.path.dirname(one.log)).summary, os.path.dirname(one.log)
    reward = one.metrics.get("reward")
    return ComparedRun(one.setting, one.run, directory, summary.result, summary.sentence, reward, one.image, one.gpus)


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
