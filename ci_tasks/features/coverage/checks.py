"""What a test would notice: assertions after the run, checks inside it, or only that it came to its end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.features.coverage.training import TrainingLaunch
from ci_tasks.features.recorder.records import NONE, AssertionSite, Recording

ASSERTS, IN_RUN, SMOKE, UNIT, NOTHING = "asserts", "checks in the run", "smoke", "unit tests", "runs nothing"

# The framework's own checks by flag, beyond the standard ones of --ci-test.
_IN_RUN = {
    "--ci-load-grad-norm": "gradient norms equal those of the first layout",
    "--ci-train-rollout-logprob-abs-diff-threshold": "train/rollout log-prob difference below {}",
    "--ci-metric-checker-key": "metric {} is checked",
}
_HOLE, _WORD, _LONG = re.compile("⟨[^⟩]*⟩"), re.compile(r"[A-Za-z_]{2,}"), 120
_STANDARD, _NO_KL, _MTP = "--ci-test", "--ci-disable-kl-checker", "--enable-mtp-training"


@dataclass(frozen=True)
class CheckSummary:
    """`level` is the strongest of what follows; `ci_test` whether the framework's standard checks are on in a training,
    `without_kl` whether they lack the one of KL in all; `assertions` are the texts of those after the run."""

    level: str
    ci_test: bool = False
    without_kl: bool = False
    in_run: tuple[str, ...] = ()
    assertions: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        if self.level in (UNIT, NOTHING):
            return self.level
        parts = []
        if self.assertions:
            count = len(self.assertions)
            parts.append(f"{count} assertion{'s' if count > 1 else ''} after the run")
        parts += self.in_run
        ci_test = f"`{_STANDARD}`{' without KL' if self.without_kl else ''}" if self.ci_test else f"no `{_STANDARD}`"
        return ", ".join([*(parts or [SMOKE]), ci_test])


def checked(recording: Recording, started: Sequence[TrainingLaunch]) -> CheckSummary:
    """What would make this test fail."""
    if not started:
        return CheckSummary(NOTHING if recording.entry == NONE else UNIT if recording.tests else SMOKE)
    first: dict[str, int] = {}
    for training in started:
        first.setdefault(training.entry, training.call)
    assertions = [_assertion_text(check) for check in recording.assertions if _after(check, first, recording)] + [
        f"`{call.target}`"
        for place, call in enumerate(recording.calls)
        if call.function.startswith("assert_") and place > first.get(call.entry, place)
    ]
    with_ci = [training for training in started if _STANDARD in training.flags]
    in_run = tuple(dict.fromkeys(description for training in with_ci for description in _in_run(training)))
    level = NOTHING if recording.entry == NONE else ASSERTS if assertions else IN_RUN if in_run else SMOKE
    return CheckSummary(
        level=level,
        ci_test=bool(with_ci),
        without_kl=bool(with_ci) and all(_NO_KL in training.flags for training in with_ci),
        in_run=in_run,
        assertions=tuple(dict.fromkeys(assertions)),
    )


def _after(check: AssertionSite, first: Mapping[str, int], recording: Recording) -> bool:
    """Whether it follows a training: as recorded; or, of one that was not reached, by its place in a function that
    started the training or ran after it."""
    if check.after is not None:
        return check.entry in first and check.after > first[check.entry]
    lines = [
        frame.line
        for call in recording.calls[min(first.values()) :]
        for frame in call.stack
        if (frame.file, frame.function) == (check.file, check.function)
    ]
    return bool(lines) and min(lines) < check.line


def _assertion_text(check: AssertionSite) -> str:
    """The first sentence of what an assertion says, or the assertion itself where it says nothing of its own."""
    message = _HOLE.sub("…", " ".join(check.message.split())).split(". ")[0].split("; ")[0]
    if len(_WORD.findall(message)) < 2 or "=…" in message:
        return f"`{check.text}`"
    return message if len(message) <= _LONG else message[: _LONG - 1].rstrip() + "…"


def _in_run(training: TrainingLaunch) -> list[str]:
    descriptions = [
        description.format(training.value(flag)) for flag, description in _IN_RUN.items() if flag in training.flags
    ]
    return [*descriptions, "only MTP parameters get gradients"] if _MTP in training.flags else descriptions
