"""What a test launches → what a row that runs it covers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.coverage.features import features
from ci_tasks.features.coverage.training import TrainingLaunch, trainings, written
from ci_tasks.features.recorder.records import NONE, UNKNOWN, AssertionSite, Recording

E2E, UNIT, VACUOUS, UNREAD = "e2e", "unit", "vacuous", "unread"
Read = Callable[[str], "str | None"]

# Short name → Megatron's flag, in the order in which they are written.
_LAYOUT = {
    "TP": "--tensor-model-parallel-size",
    "PP": "--pipeline-model-parallel-size",
    "CP": "--context-parallel-size",
    "EP": "--expert-model-parallel-size",
    "ETP": "--expert-tensor-parallel-size",
}
# What a name says of a mixture of experts, where no flag does: 30B of which 3B are active, or the word itself.
_MOE_NAME = re.compile(r"(?i)\bmoe\b|\d+B[-_]A\d+B|\d+x\d+")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")
# The framework's own checks by flag, beyond the standard ones of --ci-test.
_IN_RUN = {
    "--ci-load-grad-norm": "gradient norms equal those of the first layout",
    "--ci-train-rollout-logprob-abs-diff-threshold": "train/rollout log-prob difference below {}",
    "--ci-metric-checker-key": "metric {} is checked",
    "--enable-mtp-training": "only MTP parameters get gradients",
}
_WORD, _LONGEST = re.compile(r"[A-Za-z_]{2,}"), 120


@dataclass(frozen=True)
class RowFacts:
    """What a row covers: `models` ("Qwen3-30B-A3B MoE"), `algorithms`, `layouts` ("TP2 + CP2", "DP" for none but data
    parallel), `placements` of the engines and `features`. `checks` are what would make it fail, `assertions` the texts
    of those after the run, `flags` every flag of its trainings with the values given, `unknown` what of these is not
    known, `origin` whether the test was recorded or only read, `problem` why it is not known to its end."""

    kind: str
    checks: str
    assertions: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    placements: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    trainings: int = 0
    trained_gpus: tuple[int, ...] = ()
    tests: tuple[str, ...] = ()
    doc: str = ""
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    origin: str = ""
    problem: str = ""

    @property
    def exercised(self) -> list[str]:
        """All of it, one by one, in words that stand alone."""
        layouts = [f"layout {layout}" for layout in self.layouts]
        return [*self.models, *self.algorithms, *layouts, *self.placements, *self.features]


def facts(recording: Recording, read: Read) -> RowFacts:
    """`read` gives other files of the checkout: the models' scripts."""
    started = trainings(recording)
    # A unit test under stubs fails like any other; what follows then is not looked for.
    entries = {training.entry for training in started} or {""}
    problem = "; ".join(stop.why for stop in recording.stops if stop.entry in entries)
    doc = " ".join(recording.doc.split("\n\n")[0].split())
    if not started:
        idle = recording.entry == NONE
        kind, checks = (VACUOUS, "runs nothing") if idle else (UNIT, "unit tests" if recording.tests else "smoke")
        return RowFacts(
            UNREAD if problem else kind,
            checks,
            tests=recording.tests,
            doc=doc,
            origin=recording.origin,
            problem=problem,
        )
    configs = written(recording)
    asserted = _each(_assertion_text(site) for site in recording.assertions if _is_after(site, started, recording))
    flags: dict[str, tuple[str, ...]] = {}
    for flag, values in sorted(pair for training in started for pair in training.flags.items() if pair[0]):
        flags[flag] = _each((*flags.get(flag, ()), " ".join(values)))
    return RowFacts(
        E2E,
        _checks(recording, started, asserted),
        assertions=asserted,
        models=_model(started[0], recording.constants.get("MODEL_NAME"), read),
        algorithms=_each(map(_algorithm, started)),
        layouts=_each(map(_layout, started)),
        placements=_each(map(_placement, started)),
        features=_each(feature for training in started for feature in features(training, configs)),
        backends=_each(training.value("--train-backend", "megatron").lower() for training in started),
        trainings=len(started),
        trained_gpus=tuple(sorted({training.gpus for training in started if isinstance(training.gpus, int)})),
        tests=recording.tests,
        doc=doc,
        flags=flags,
        unknown=_each(part for values in flags.values() for value in values for part in UNKNOWN.findall(value)),
        origin=recording.origin,
        problem=problem,
    )


def _each(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(value for value in dict.fromkeys(values) if value)


def _model(training: TrainingLaunch, name: object, read: Read) -> tuple[str, ...]:
    """The test's own name of its model, or its checkpoint's, and what kind it is: by flags before names."""
    checkpoint = training.value("--hf-checkpoint").rstrip("/").rpartition("/")[2]
    called = name if isinstance(name, str) else "" if "⟨" in checkpoint else checkpoint
    if not called:
        return ()
    script = read(f"scripts/models/{training.model_script}.sh") if isinstance(training.model_script, str) else None
    given = {*training.flags, *_FLAG.findall(script or "")}
    is_known = script is not None or "--num-layers" in given
    moe = "--num-experts" in given or training.number("--expert-model-parallel-size") > 1
    moe = moe or (not is_known and bool(_MOE_NAME.search(called.replace("_", " "))))
    kind = f"{'MLA ' if '--multi-latent-attention' in given else ''}{'MoE' if moe else 'dense'}"
    return (called if kind.lower() in called.lower() else f"{called} {kind}",)


def _algorithm(training: TrainingLaunch) -> str:
    """The advantage estimator. GRPO is the framework's default, which is not known to hold if arguments are hidden."""
    default = "" if training.hidden else "grpo"
    return training.value("--advantage-estimator", default).upper().replace("_", "-")


def _layout(training: TrainingLaunch) -> str:
    sizes = {name: training.number(flag) for name, flag in _LAYOUT.items()}
    return " + ".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or ("" if training.hidden else "DP")


def _placement(training: TrainingLaunch) -> str:
    """Where the engines are; "" where no flag says it."""
    if "--rollout-external-engine-addrs" in training.flags:
        return "external engines"
    if "--colocate" in training.flags:
        return "colocated"
    return "disaggregated" if "--rollout-num-gpus" in training.flags else ""


def _checks(recording: Recording, started: Sequence[TrainingLaunch], asserted: Sequence[str]) -> str:
    """What would make this test fail: assertions after the run, checks inside it, or only that it does not end."""
    if recording.entry == NONE:
        return "runs nothing"
    checked = [training for training in started if "--ci-test" in training.flags]
    parts = [f"{len(asserted)} assertion{'s' if len(asserted) > 1 else ''} after the run"] if asserted else []
    parts += _each(
        words.format(training.value(flag))
        for training in checked
        for flag, words in _IN_RUN.items()
        if flag in training.flags
    )
    without_kl = all("--ci-disable-kl-checker" in training.flags for training in checked)
    if checked:
        parts = [*(parts or ["smoke"]), f"`--ci-test`{' without KL' if without_kl else ''}"]
    else:
        is_hidden = any(training.hidden for training in started)
        parts = [*(parts or ["smoke"]), "`--ci-test` not seen" if is_hidden else "no `--ci-test`"]
    return ", ".join(parts)


def _is_after(site: AssertionSite, started: Sequence[TrainingLaunch], recording: Recording) -> bool:
    """Whether an assertion follows a training, by its place in a function that started one or ran after it."""
    frames = [frame for call in recording.calls[started[0].call :] for frame in call.stack]
    lines = [frame.line for frame in frames if (frame.file, frame.function) == (site.file, site.function)]
    return bool(lines) and min(lines) < site.line


def _assertion_text(site: AssertionSite) -> str:
    """The first sentence of what an assertion says, or the assertion itself where it says nothing of its own."""
    message = UNKNOWN.sub("…", " ".join(site.message.split())).split(". ")[0].split("; ")[0]
    if len(_WORD.findall(message)) < 2 or "=…" in message:
        return f"`{site.text}`"
    return message if len(message) <= _LONGEST else message[: _LONGEST - 1].rstrip() + "…"
