"""A level's run, from two working trees to the summary for the pull request. The summary of a run that has ended is
made from its directory alone, so that `attach` can end with it as well; or from a log alone.

`verl --base`: a level with the base Bridge and with the candidate, until a rule of trials decides. Below level 5 the
question is whether the candidate fails more often (AB: a candidate that passes is not compared), at level 5 whether its
reward is lower (Metrics). Both sides run the same verl with the same request on one host; both sides of a pair have one
seed, each pair another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

from ci_tasks.agent.codec import encode, from_json, to_json
from ci_tasks.agent.files import pieces_of
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.agent.run_directory import RunDir, read_plan
from ci_tasks.checkout.snapshot import all_conversions, copy_side_by_side
from ci_tasks.config import Config
from ci_tasks.errors import EXIT_CANCELLED, CheckoutError, UsageError, printable
from ci_tasks.features.verl.judge.learning import REWARD, values_of
from ci_tasks.features.verl.judge.records import BLOCKED, FAIL, NOT_PROVEN, PASS, RESULT_CODES, Deliverable, Summary
from ci_tasks.features.verl.judge.training_log import BRIDGE_CHECKS, RunFacts, TrainingFacts, read_run
from ci_tasks.features.verl.judge.training_run import LevelContext, LevelRun
from ci_tasks.features.verl.judge.verdict import summarize, text
from ci_tasks.features.verl.levels.levels import BRIDGE, VERL, LevelRequest, Training, command, render, trainings
from ci_tasks.features.verl.options import VerlOptions
from ci_tasks.features.verl.suite import LABEL, workflow
from ci_tasks.hosts.executor import temporary_checkout
from ci_tasks.records import CANCELLED, EXIT_CODES, FAILED, PASSED, VACUOUS, BatchResult, PlanEntry, RunRecord
from ci_tasks.report import lists
from ci_tasks.resources import user_path
from ci_tasks.results.probe_evidence import read_run_evidence
from ci_tasks.results.runs import save_record
from ci_tasks.run import label as running
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest
from ci_tasks.run.events import EventStream
from ci_tasks.trials import rules
from ci_tasks.trials.rules import AB, Metrics, Outcome, TrialRule, TrialVerdict
from ci_tasks.trials.trial import Trial, TrialRun

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

    def execute(self, events: EventStream | None) -> BatchResult | None:
        source, request = self.job()
        how = ExecutionOptions(detach=self.options.detach, events=events)
        return running.execute_label(source, self.config, request, how)


def plan(trees: LevelTrees) -> list[PlanEntry]:
    """Write the run directory that the level would execute. Print its plan, every training, and what is known to be
    missing."""
    source, request = trees.job()
    entries = running.plan(source, trees.config, request)
    ends = "a failed training ends the run, and so does a level 0 whose log contradicts it"
    lines = [*lists.plans(entries), "", f"Trainings, in this order; {ends}:"]
    for number, one in enumerate(trees.trainings, 1):
        lines += [f"{number}. {one.name}, to step {one.steps}", f"   {command(one)}"]
    print("\n".join([*lines, "", *trees.headline]))
    return entries


def run(trees: LevelTrees, *, events: EventStream | None = None) -> tuple[int, Summary | BatchResult | None]:
    """Run the requested level and the levels it needs, then summarize. Returns the exit code of its result, and the
    summary of what ran to its end, or of what continues without us."""
    print("\n".join(trees.headline), flush=True)
    done = trees.execute(events)
    if done is None:
        return EXIT_CODES[VACUOUS], None
    if done.exit_code is None:
        print(f"{done.id}: continues on {trees.options.host}; `ci-tasks attach {done.id}` ends with its summary")
        return 0, done
    if done.runs[0].status == CANCELLED:
        return done.exit_code, None
    summary = conclude(trees.context, done.runs[0], done.directories[done.runs[0].id])
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
        raise CheckoutError(f"{bridge} is not Megatron-Bridge: it has no {BRIDGE_HAS}", hint="--bridge DIR sets it")
    if first.simulate and (bridge / "pyproject.toml").is_file() and not options.plan:
        hint = "--host names a host with GPUs; --plan shows the commands; for the sample see `ci-tasks verl --help`"
        raise UsageError(f"host {first.name} only simulates GPUs, and {bridge} needs real ones", hint=hint)
    for path in filter(None, (request.wrapper, request.script)):
        if not (verl / path).is_file():
            hint = "--verl DIR sets verl's checkout, --wrapper FILE the wrapper's path"
            raise CheckoutError(f"{verl} has no {path}", hint=hint)
        scripts[path] = (verl / path).read_text(encoding="utf-8", errors="replace")
    for test in request.bridge_tests:
        if not (bridge / test.partition("::")[0]).exists():
            raise CheckoutError(f"{bridge} has no {test}", hint="--test FILE is a path in the Bridge checkout")
    trainings(request, scripts)
    for spec in others:
        if (spec.runtime == "none", spec.simulate) != (first.runtime == "none", first.simulate):
            hint = "name hosts of one kind: only one of these simulates, or uses containers"
            raise UsageError(f"hosts {first.name} and {spec.name} do not run the same level", hint=hint)
    if not image and first.runtime != "none":
        hint = "--image verlai/verl:TAG, a vLLM-flavored tag unless another engine is tested (or VERL_IMAGE)"
        raise UsageError(f"host {first.name} runs levels in a container, and no image is named", hint=hint)
    with temporary_checkout() as into:
        into.mkdir()
        print(f"reading {bridge} and {verl}", flush=True)
        made = copy_side_by_side({BRIDGE: bridge, VERL: verl}, into, {BRIDGE: revision} if revision else {})
        context = LevelContext(
            request=request, bridge=made[BRIDGE], verl=made[VERL], command=options.command_line, host=options.host,
            image=image, simulated=first.simulate, baseline=options.baseline or "",
            remarks=tuple(_remarks(bridge, image)), scripts=scripts,
        )  # fmt: skip
        yield LevelTrees(into, options, config, context)


def _remarks(bridge: Path, image: str) -> Iterator[str]:
    """What limits, before the run, what it can show."""
    tag = image.rpartition("/")[2].partition(":")[2]
    if image and "@sha256:" not in image and (not tag or _MOVING.search(tag)):
        yield f"image {image} has a tag that moves: pin a release, or the digest that ran"
    if not (bridge / "3rdparty/Megatron-LM/megatron/core").is_dir():
        yield f"{bridge}/3rdparty/Megatron-LM is empty: megatron.core is the image's, or git submodule update --init"


# -- of a run that has ended -------------------------------------------------------------------------------------------


def attached(record: RunRecord, directory: str) -> int | None:
    """Print and store the summary of a run that was attached to. Returns the exit code of its result; None for
    what is no level, or was cancelled."""
    context = read_context(directory)
    if context is None and record.label == LABEL:
        print(f"{record.id}: no summary: only the machine that started the level can make it")
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
    """Judge the run and store the result as summary.json in its directory; a job that ended well and does not prove the
    level is no run that passed."""
    run, request, image = RunDir(directory), context.request, record.environment.image_identity
    workspace, facts = read_plan(run).workspace, read_run(pieces_of(run.log), request.proofs)
    level = LevelRun(
        context,
        trainings(request, context.scripts),
        facts,
        PASSED if record.status == VACUOUS else record.status,  # what is judged again was so
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
    status = _STATUSES.get(summary.result, VACUOUS)
    if status not in (PASSED, record.status) and (record.status == PASSED or status == FAILED):
        save_record(run, replace(record, status=status, reason=f"{summary.result}: {summary.sentence}"))
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
    rewarded = [one for one in found if values_of(one.metrics, REWARD)]
    if path and not rewarded:
        hint = "give the log of a training of level 5: the file `log` in its run directory, or verl's console output"
        raise UsageError(f"--baseline {path} has no {REWARD} of any step", hint=hint)
    return rewarded[-1] if rewarded else None


def _facts_of(log: Path, option: str, proofs: Sequence[str], names: Sequence[str]) -> RunFacts:
    if not log.is_file():
        raise UsageError(f"{option} names {log}, which is not a file")
    if not log.stat().st_size:
        raise UsageError(f"{option} names {log}, which is empty", hint="give verl's console output")
    return read_run(pieces_of(str(log)), proofs, names)


# -- base and candidate ------------------------------------------------------------------------------------------------

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
            raise UsageError(f"the candidate's tree equals the base, {titles[0]}", hint="--base names another")
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
    trial.path.unlink(missing_ok=True)  # the same command begins again: only an interrupted one continues
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
            return f"the sides ran differently: {what} {' and '.join(sorted(seen))}"
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
    if done is None or not done.runs or done.runs[0].status == CANCELLED:
        raise KeyboardInterrupt
    record = done.runs[0]
    run_dir = done.directories[record.id]
    summary, facts = evaluate(seeded.context, record, run_dir)
    training = facts.trainings.get(seeded.trainings[-1].name)
    rewards = values_of(training.metrics, REWARD) if training else []
    last = rewards[len(rewards) // 2 :] if len(rewards) > 3 else []
    # At level 5 the curves decide, whatever the level's own criteria say of a training that came to its end.
    learned = asked.level == 5 and training and training.exit_code == 0 and last
    return Outcome(
        run.setting, run.rows[0], rules.PASSED if learned else _STATUSES.get(summary.result, summary.result),
        signature=re.sub(r"\d+|/\S+", "…", summary.sentence),
        reason="" if summary.result == PASS else f"{summary.result}: {summary.sentence}", run=record.id,
        log=RunDir(run_dir).log, image=record.environment.image_identity,
        gpus=", ".join(sorted(gpu.name for gpu in record.environment.gpus)),
        metrics={"reward": fmean(last), "reward error": stdev(last) / len(last) ** 0.5} if last else {},
    )  # fmt: skip
