"""Short logs in verl's shapes, written from what each training was asked."""

from __future__ import annotations

import json
import pprint
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml

from ci_tasks.agent.evidence import HookEvent, ImportedModule, ProcessEvidence, RunEvidence
from ci_tasks.features.verl.judge.records import Summary
from ci_tasks.features.verl.judge.training_log import read_run
from ci_tasks.features.verl.judge.training_run import HOOK, LevelContext, LevelRun, asked_settings
from ci_tasks.features.verl.judge.verdict import summarize
from ci_tasks.features.verl.levels.levels import LevelRequest, Training, trainings

ROOT = "/src/Megatron-Bridge"
BRIDGE = f"{ROOT}/src/megatron/bridge/__init__.py"
CORE = f"{ROOT}/3rdparty/Megatron-LM/megatron/core/__init__.py"
WHO = "\x1b[36m(TaskRunnerV1 pid=71)\x1b[0m "
PREFLIGHT = {
    "bridge-checks": "pass: uv run python -m pytest -q tests/unit_tests/models",
    "import-driver": f"pass: {BRIDGE}",
    "import-worker": f"pass: {BRIDGE}",
    "ray": "pass: no other cluster",
    "data": "pass: /data/gsm8k/train.parquet",
    "reward-model": "pass: /models/rm",
    "model": "pass: /models/qwen",
}
LORA = (
    "(WorkerDict pid=90) Enabling LORA with rank=4, alpha=4, dropout=0.0",
    "(WorkerDict pid=90)   Adapter parameters:   8,192",
)
REQUEST = LevelRequest(0, model_id="Qwen/Qwen2.5-0.5B", reward_model="/models/rm")


Body = Callable[[list[str]], Sequence[str]]


class Writer:
    """Writes the log of a run, piece by piece."""

    request = REQUEST

    def __init__(self) -> None:
        self._clock = 0
        self.processes: list[ProcessEvidence] = []

    def preflight(self, **other: str | None) -> str:
        """All checks passed, except for `other`: its status and text, or None for one that was not made."""
        marks = {**PREFLIGHT, **{key.replace("_", "-"): text for key, text in other.items()}}
        return "".join(f"ci-tasks-verl: {key}: {text}\n" for key, text in marks.items() if text is not None)

    def training(
        self,
        training: Training,
        *,
        body: Sequence[str] | Body | None = None,
        resolved: Mapping[str, Any] | None = None,
        log_lines: Sequence[str] = LORA,
        exit_code: int | None = 0,
        **steps: Any,
    ) -> str:
        """One training that did what it was asked, except for `resolved`, settings that became something else; `body`
        is what follows the settings, or what is made of it; `log_lines` stand there before the first of the `steps`."""
        self._clock += 100
        self.processes.append(worker(training, self._clock + 50))
        lines = [f"ci-tasks-verl: begin: {training.name}", f"ci-tasks-verl: command: bash {training.script}"]
        lines += [f"ci-tasks-verl: clock: {self._clock}"]
        lines += [f"{WHO}{line}" for line in pprint.pformat(self.settings(training, resolved or {})).splitlines()]
        usual = [*built(training), *log_lines, *self.steps(training, **steps)]
        lines += usual if body is None else body(usual) if callable(body) else body
        lines.append(f"ci-tasks-verl: clock: {self._clock + 99}")
        if exit_code is not None:
            lines.append(f"ci-tasks-verl: end: {training.name}: {exit_code}")
            if training.level == 1 and not exit_code:
                lines.append(f"ci-tasks-verl: file: {training.name}: {'0' * 64} actor/model.safetensors")
        return "".join(f"{line}\n" for line in lines)

    def steps(
        self,
        training: Training,
        series: Mapping[str, Sequence[float]] | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> list[str]:
        """The lines of its steps from `first` to `last`, and what a resume says; `series` replaces a metric's values,
        one for each step."""
        training = replace(training, steps=last or training.steps)
        begin = (training.steps if training.resumes else 1) if first is None else first
        done = begin - 1
        lines = []
        if done:
            lines.append(
                f"INFO:2025-01-02 03:04:05,6:Resuming from /c/global_step_{done}, setting global step to {done}"
            )
        if training.level == 5:
            lines.append(f"{WHO}step:0 - val-core/openai/gsm8k/acc/mean@1:np.float64(0.2)")
        for step in range(begin, training.steps + 1):
            values = {**metrics(step), **{key: own[step - 1] for key, own in (series or {}).items()}}
            lines.append(f"{WHO}step:{step} - " + " - ".join(f"{key}:{value!r}" for key, value in values.items()))
            bar = f"{100 * step // training.steps:3d}%|███| {step}/{training.steps} [00:01<00:00,  1.00s/it]"
            lines.append(f"\rTraining Progress:   0%|   | 0/{training.steps} [00:00<?]\rTraining Progress: {bar}")
        return lines

    def settings(self, training: Training, other: Mapping[str, Any]) -> dict[str, Any]:
        """verl's whole configuration, nested."""
        flat = {"algorithm.adv_estimator": "gae", "data.max_response_length": 512, "trainer.resume_mode": "disable"}
        flat |= {dotted: yaml.safe_load(asked) for dotted, asked in asked_settings(training).items()}
        values: dict[str, Any] = {}
        for dotted, value in {**flat, "actor_rollout_ref.model.path": "/models/qwen", **other}.items():
            *parents, last = dotted.split(".")
            place = values
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        return values

    def ran(
        self,
        request: LevelRequest,
        *edits: Mapping[str, Any] | None,
        preflight: Mapping[str, str | None] | None = None,
        log: Callable[[str], str] = str,
        **more: Any,
    ) -> Summary:
        """The summary of a run whose trainings differ by `edits`, in order, from one that did well; None: the run ended
        before it. `log` may change the whole log."""
        text = self.preflight(**(preflight or {}))
        for at, training in enumerate(trainings(request)):
            edit = edits[at] if at < len(edits) else {}
            if edit is None:
                break
            text += self.training(training, **edit)
        self.log = log(text)
        return self.judged(request, self.log, **more)

    def line(self, part: str) -> int:
        """The number of the first line with that part in the log of the last run."""
        return next(at for at, text in enumerate(self.log.split("\n"), 1) if part in text)

    def judged(
        self,
        request: LevelRequest,
        text: str,
        ended: tuple[str, str] = ("passed", ""),
        evidence: RunEvidence | None = None,
        **at: Any,
    ) -> Summary:
        """The summary of a log; `ended` is the run's status and reason; without an `evidence`, of one whose workers
        noted what they were asked to be."""
        evidence = evidence or RunEvidence(processes=tuple(self.processes))
        facts = read_run([text.encode()], request.proofs)
        run = LevelRun(
            LevelContext(request), trainings(request), facts, *ended, ROOT, evidence, log="/runs/1/log", **at
        )
        return summarize(run)


def built(training: Training) -> list[str]:
    """What is said of a model that became what was asked."""
    fsdp = training.env["USE_MEGATRON_FSDP"]
    return [f"(WorkerDict pid=90) Setting up DistributedDataParallel with config Config(use_megatron_fsdp={fsdp})"]


def worker(training: Training, started_at: float) -> ProcessEvidence:
    """A process that imported the checkouts, and made the groups that were asked for."""
    names = {"tensor": "TP", "pipeline": "PP", "context": "CP", "expert": "EP"}
    sizes = {name: int(training.env.get(f"COMMON_{short}", "1")) for name, short in names.items()}
    return ProcessEvidence(
        pid=90,
        env={"RANK": "0"},
        started_at=started_at,
        imports=(ImportedModule("megatron.bridge", BRIDGE), ImportedModule("megatron.core", CORE)),
        hook_events=(HookEvent(started_at, HOOK, "sizes", json.dumps(sizes)), *checkpoints(training, started_at)),
    )


def checkpoints(training: Training, at: float) -> Iterator[HookEvent]:
    """Those of level 1: each step's is written, and a resume reads the one before."""
    if training.level != 1:
        return

    def event(kind: str, step: int) -> HookEvent:
        fields = {"path": f"/c/global_step_{step}/actor", "files": {"model.json": 9}}
        return HookEvent(at, HOOK, kind, json.dumps(fields))

    if training.resumes:
        yield event("loaded", training.steps - 1)
    yield event("saved", training.steps)


def metrics(step: int) -> dict[str, float]:
    """A run that learns, a little more with each step."""
    return {
        "actor/pg_loss": 0.5 / step,
        "actor/kl_loss": 0.001 * step,
        "actor/entropy": 0.7 - 0.01 * step,
        "actor/grad_norm": 0.2 + 0.001 * step,
        "critic/vf_loss": 0.3 / step,
        "critic/values/mean": 0.1 * step,
        "critic/rewards/mean": 0.2 + 0.03 * step,
        "response_length/clip_ratio": 0.05,
    }


@pytest.fixture
def writer() -> Writer:
    return Writer()
