"""One search under way: rounds of runs until something is decided, and what is said of each."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import EXIT_CANCELLED, Blocked, UsageError, counted
from ci_tasks.features.failures.bisection import report, strategy
from ci_tasks.features.failures.bisection.axis import Point, SearchRange
from ci_tasks.features.failures.bisection.bisection_state import BisectionState
from ci_tasks.features.failures.bisection.marks import mark
from ci_tasks.features.failures.bisection.observations import BLOCKED, FAIL, PASS, Observation
from ci_tasks.features.failures.bisection.run_commits import CommitRun, RowUnderTest, run_commits
from ci_tasks.features.failures.bisection.strategy import (
    BisectionGoal,
    CulpritFound,
    InvalidRange,
    RunCommits,
    Undecided,
    assess,
    next_decision,
)
from ci_tasks.run.events import Message, now

FOUND, UNCLEAR, INTERRUPTED = "found", "unclear", "interrupted"
EXIT_CODES = {FOUND: 0, UNCLEAR: 1, INTERRUPTED: EXIT_CANCELLED}
_BLOCKED_AT_END = 2  # runs in a row that a host blocks, the last of them of a commit known to run: then it is the host
_BLOCKED_ELSEWHERE = 3  # runs in a row that a host blocks, after which it has to show that it can run anything


@dataclass(frozen=True)
class CulpritCandidate:
    """`commit` is what ran, or the overlay's; with `--axis image`, `image` is the culprit."""

    commit: str
    subject: str
    probability: float
    image: str = ""


@dataclass(frozen=True)
class BisectionResult:
    """As `bisect --json` prints it. `result` is found, unclear or interrupted; `candidates` are commits or images, the
    most probable first, and one where it was found. `runs` is how many runs it took."""

    result: str
    exit_code: int
    candidates: tuple[CulpritCandidate, ...]
    runs: int


@dataclass
class Bisection:
    """One bisection under way. `blocked_streaks` are the runs in a row that a host has blocked since this command
    began."""

    search: SearchRange
    goal: BisectionGoal
    work: RowUnderTest
    state: BisectionState
    hosts: Sequence[str]
    blocked_streaks: dict[str, list[Observation]] = field(default_factory=dict)
    out: dict[str, str] = field(default_factory=dict)
    print_lock: threading.Lock = field(default_factory=threading.Lock)
    target_printed: bool = False

    def run(self) -> BisectionResult:
        self._print_earlier_runs()
        try:
            while isinstance(decision := self._decide(), RunCommits):
                if not self.target_printed and not {0, self.goal.graph.bad}.issuperset(decision.positions):
                    self._print_target()
                self._run_round(decision.positions)
        except KeyboardInterrupt:
            self.print_line(
                f"interrupted after {counted(len(self.state.observations), 'run')}; the same command goes on from here"
            )
            return self._result(INTERRUPTED, [])
        return self._print_result(decision)

    def _decide(self) -> strategy.BisectionDecision:
        return next_decision(self.goal, self.state.observations, len(self._usable_hosts()))

    def _usable_hosts(self) -> list[str]:
        """The hosts that can run anything. Raises Blocked where none is left."""
        hosts = [host for host in self.hosts if host not in self.out]
        if not hosts:
            reasons = "; ".join(f"{host}: {why}" for host, why in self.out.items())
            raise Blocked(
                f"no host can run row {self.work.row} of a commit that should run: {reasons}",
                hint="`ci-tasks doctor --host NAME` says what a host lacks; the same command then goes on from here",
            )
        return hosts

    def _run_round(self, positions: Sequence[int]) -> None:
        commit_runs = []
        for host, position in zip(self._usable_hosts(), positions, strict=False):
            # A host that blocks commit after commit runs one that is known to run: is it the commits, or the host?
            in_doubt = len(self.blocked_streaks.get(host, ())) >= _BLOCKED_ELSEWHERE
            chosen = self.goal.graph.bad if in_doubt else position
            point, must = self.search.points[chosen], chosen == self.goal.graph.bad
            commit_runs.append(CommitRun(chosen, point.sha, host, must, point.image, point.overlay))
        run_commits(self.work, commit_runs, self.print_line, self._record)

    def _record(self, observation: Observation) -> None:
        mark_text = str(mark(self.goal, [*self.state.observations, observation]))
        self.state.add(observation, mark_text)
        self._show(observation, mark_text, len(self.state.observations))
        if observation.kind == PASS and self._results_at_bad() == [PASS]:
            self.print_line(f"     {report.passes_at_bad(strategy.MAX_RUNS_AT_BAD)}")
        streak = self.blocked_streaks.setdefault(observation.host, [])
        if observation.kind != BLOCKED:
            streak.clear()
            return
        streak.append(observation)
        if len(streak) >= _BLOCKED_AT_END and observation.position in (0, self.goal.graph.bad):
            self.out[observation.host] = observation.reason
            self.print_line(f"     {observation.host} is out: blocked {len(streak)} times in a row")

    def _results_at_bad(self) -> list[str]:
        at_bad = [each.kind for each in self.state.observations if each.position == self.goal.graph.bad]
        return [kind for kind in at_bad if kind in (PASS, FAIL)]

    def _print_earlier_runs(self) -> None:
        """Show what was found out before."""
        for number, (observation, mark_text) in enumerate(
            zip(self.state.observations, self.state.marks, strict=True), 1
        ):
            self._show(observation, mark_text, number)
        if self.state.observations:
            self.print_line(
                f"going on after {counted(len(self.state.observations), 'run')} of before ({self.state.path})"
            )

    def _show(self, observation: Observation, mark_text: str, number: int) -> None:
        self.print_line(
            report.observation(
                number,
                self.search.points[observation.position],
                observation.host,
                mark_text,
                observation.run,
                observation.seconds,
            )
        )

    def _print_target(self) -> None:
        """Once the ends are known: what is looked for, and how long it may take."""
        assessment = assess(self.goal, self.state.observations)
        at_bad = assessment.run_counts.at(self.goal.graph.bad)
        to_go = strategy.runs_to_go(assessment.now)
        self.print_line(f"     {report.target(assessment.run_counts.target, at_bad.fails, at_bad.valid, to_go)}")
        self.target_printed = True

    def print_line(self, text: str) -> None:
        with self.print_lock:
            print(text, flush=True)
        if self.work.events:
            self.work.events.write(Message(now(), text.strip()))

    def _print_result(self, decision: CulpritFound | Undecided | InvalidRange) -> BisectionResult:
        if isinstance(decision, InvalidRange):
            raise self._refusal(decision)
        effort = report.Effort(
            len(self.state.observations),
            len({observation.position for observation in self.state.observations}),
            sum(observation.seconds or 0 for observation in self.state.observations),
            self.search.noun,
        )
        if isinstance(decision, Undecided):
            left = [(self.search.points[position], probability) for position, probability in decision.left]
            self.print_line("\n".join(report.unclear(left, decision.distinguishable, effort)))
            return self._result(UNCLEAR, left)
        self.print_line(
            "\n".join(
                report.culprit(
                    self.search.points[decision.position],
                    decision.probability,
                    self._failure_counts(decision.position),
                    self._see(decision.position),
                    effort,
                )
            )
        )
        return self._result(FOUND, [(self.search.points[decision.position], decision.probability)])

    def _result(self, result: str, left: Sequence[tuple[Point, float]]) -> BisectionResult:
        candidates = tuple(
            CulpritCandidate(point.commit.sha, point.commit.subject, share, point.image) for point, share in left
        )
        return BisectionResult(result, EXIT_CODES[result], candidates, len(self.state.observations))

    def _see(self, position: int) -> str:
        """The command that shows the culprit: what a commit changed, or the row with the image before."""
        if not self.search.points[-1].image:
            overlay = next((each for each in self.work.config.given.overlays if each.name == self.work.overlay), None)
            return report.see_commit(overlay.path if overlay else self.work.repo, self.search.points[position])
        before, work = self.search.points[position - 1], self.work
        row = f"{shlex.quote(work.label)} --only {shlex.quote(work.row)} --rev {before.commit.sha[:12]}"
        return (
            f"ci-tasks remote --host {self.hosts[0]} {row} --image {shlex.quote(before.image)}   (the image before it)"
        )

    def _failure_counts(self, culprit: int) -> report.FailureCounts:
        within = self.goal.graph.descendants[culprit]
        counts = assess(self.goal, self.state.observations).run_counts.counts
        after = [commit_counts for position, commit_counts in counts.items() if within >> position & 1]
        before = [commit_counts for position, commit_counts in counts.items() if not within >> position & 1]
        return report.FailureCounts(
            sum(commit_counts.fails for commit_counts in after),
            sum(commit_counts.valid for commit_counts in after),
            sum(commit_counts.fails for commit_counts in before),
            sum(commit_counts.valid for commit_counts in before),
        )

    def _refusal(self, decision: InvalidRange) -> UsageError:
        """Why the ends will not do, and what would."""
        good, bad = self.search.points[0].short, self.search.points[-1].short
        what = self.search.noun
        at_good, at_bad = self._last(0), self._last(self.goal.graph.bad)
        if decision.why == strategy.FAILS_AT_GOOD:
            return UsageError(
                f"--good {good} is not good: {self.work.row} fails there as it does at the bad end",
                hint=f"name an older {what} as --good",
            )
        if decision.why == strategy.GOOD_UNTESTABLE:
            return UsageError(
                f"--good {good} cannot be tested: {at_good}", hint="name one as --good where the row runs"
            )
        if decision.why == strategy.BAD_UNTESTABLE:
            return UsageError(
                f"--bad {bad} does not fail with the signature that is looked for: {at_bad}",
                hint="leave --signature away, and the failure most seen at the bad end is looked for",
            )
        return UsageError(
            f"--bad {bad} is not bad: {self.work.row} did not fail there in {strategy.MAX_RUNS_AT_BAD} runs",
            hint="name one where it fails; for a failure as rare as that, --repeat of `run` measures the rate",
        )

    def _last(self, position: int) -> str:
        """What the last run without a pass at an end said."""
        marks = [
            text
            for observation, text in zip(self.state.observations, self.state.marks, strict=True)
            if observation.position == position
        ]
        return marks[-1] if marks else "it was not run"
