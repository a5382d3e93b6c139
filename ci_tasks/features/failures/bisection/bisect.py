"""`bisect`: which commit, or which image, made a row fail, flaky or not, on one host or on several at once."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.checkout.commits import commit_at, commits_between, pinned_commit
from ci_tasks.config import Config
from ci_tasks.errors import EXIT_CANCELLED, Blocked, UsageError
from ci_tasks.features.failures.bisection import report, strategy
from ci_tasks.features.failures.bisection.axis import (
    COMMIT,
    IMAGE,
    OVERLAY,
    SUBMODULE,
    Point,
    SearchRange,
    along_commits,
    along_images,
    along_tree,
    images_of,
)
from ci_tasks.features.failures.bisection.bisection_state import BisectionKey, BisectionState, open_state
from ci_tasks.features.failures.bisection.earlier_runs import earlier_runs
from ci_tasks.features.failures.bisection.marks import mark
from ci_tasks.features.failures.bisection.observations import BLOCKED, Observation
from ci_tasks.features.failures.bisection.run_commits import CommitRun, RowUnderTest, run_commits
from ci_tasks.features.failures.bisection.strategy import (
    BisectionDecision,
    BisectionGoal,
    CulpritFound,
    InvalidRange,
    RunCommits,
    Undecided,
    assess,
    next_decision,
)
from ci_tasks.given_values import GivenValues, OverlaySource
from ci_tasks.results.history.queries import durations
from ci_tasks.run.checkout_source import CheckoutSource, event_context, open_source
from ci_tasks.run.events import EventStream, Message, now
from ci_tasks.run.job_outputs import find_rows
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.select import select

if TYPE_CHECKING:
    from ci_tasks.features.failures.command import BisectOptions

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


def bisect(
    options: BisectOptions, hosts: tuple[str, ...], config: Config, events: EventStream | None = None
) -> BisectionResult:
    """Find the culprit, with a reason for each commit's mark.

    Raises UsageError where the ends are not good and bad, Blocked where no host can go on.
    """
    for host in hosts:
        config.host(host)
    is_submodule = options.axis.startswith(SUBMODULE)
    revision = options.rev or (options.bad if options.axis == COMMIT or is_submodule else None) or "HEAD"
    source = open_source(options.repo, revision, options.workflow, config.given)
    options = replace(options, label=source.label_of(options.label))
    row = _row(source, options)
    if is_submodule:
        path = options.axis.removeprefix(SUBMODULE)
        searched = OverlaySource(path, str(source.path / path), submodule=path)
        config = replace(config, given=config.given.under(GivenValues(overlays=(searched,))))
    search = _search_range(source, options, revision, row)
    good, bad = search.points[0], search.points[-1]
    subject = BisectionKey(
        repo=str(source.path),
        good=good.key,
        bad=bad.key,
        label=options.label,
        row=row.row,
        signature=options.signature or "",
        image=options.image or "",
        first_parent=options.first_parent,
        commit="" if options.axis == COMMIT else bad.sha,
    )
    work = RowUnderTest(
        repo=str(source.path),
        workflow=options.workflow,
        label=options.label,
        row=row.row,
        config=config,
        signature=options.signature or "",
        image=options.image,
        events=events,
        probe=not options.no_probe,
        overlay=search.axis.removeprefix(OVERLAY).removeprefix(SUBMODULE),
    )
    with open_state(subject, [point.key for point in search.points], fresh=options.fresh) as state:
        if options.resume and not state.observations:
            raise UsageError("there is nothing to resume: no run of this bisection is on record", hint=str(state.path))
        own = frozenset(observation.run for observation in state.observations)
        # What other runs up to the good commit ran in is not known to be the good image.
        earlier = earlier_runs(source.path, good.key, options.label, row.row, own) if search.axis == COMMIT else ()
        goal = BisectionGoal(search.graph, options.signature or "", options.repeat or 0, earlier)
        print(source.headline)
        print("\n".join(report.head(options.label, row.row, search, hosts, len(earlier))))
        if not state.observations:
            lately = durations(options.label, hosts).get(row.row)
            print(report.cost(strategy.runs_of_steady_failure(len(search.points) - 1), lately, len(hosts)))
        return _Bisection(search.points, goal, work, state, hosts, search.axis).run()


def _search_range(source: CheckoutSource, options: BisectOptions, revision: str, row: Row) -> SearchRange:
    """What is searched. Raises UsageError, CheckoutError."""
    if options.axis == COMMIT:
        good = options.good or ""
        return along_commits(commits_between(source.path, good, revision, first_parent=options.first_parent))
    if options.axis.startswith(OVERLAY):
        overlay = _overlay(source, options.axis)
        history = commits_between(
            Path(overlay.path), options.good or "", options.bad or "HEAD", first_parent=options.first_parent
        )
        return along_tree(commit_at(source.path, revision), options.axis, history)
    if options.axis.startswith(SUBMODULE):
        path = options.axis.removeprefix(SUBMODULE)
        good, bad = (pinned_commit(source.path, rev, path) for rev in (options.good or "", options.bad or "HEAD"))
        history = commits_between(source.path / path, good, bad, first_parent=options.first_parent)
        return along_tree(commit_at(source.path, revision), options.axis, history)
    if not row.image:
        raise UsageError(
            f"row {row.row} runs in no container, so that no image can be its culprit",
            hint="`ci-tasks jobs LABEL` shows the image of each row",
        )
    commit = commit_at(source.path, revision)
    if options.images:
        file = Path(options.images)
        listed = file.read_text(errors="replace") if file.is_file() else options.images
        return along_images(commit, [(name, "") for name in images_of(listed, options.good, options.bad)])
    from ci_tasks.features.failures.bisection.registry import images_between

    dated = images_between(options.good or "", options.bad or "")
    return along_images(commit, [(image.image, image.note) for image in dated])


def _overlay(source: CheckoutSource, axis: str) -> OverlaySource:
    """The overlay that the axis names. Raises UsageError."""
    name = axis.removeprefix(OVERLAY)
    given = {overlay.name: overlay for overlay in source.given.overlays}
    if name not in given:
        raise UsageError(
            f"--axis {axis} needs --with {name or 'NAME'}=DIR",
            hint=f"given: {', '.join(given)}" if given else "DIR is the working tree whose commits are searched",
        )
    return given[name]


def _row(source: CheckoutSource, options: BisectOptions) -> Row:
    """The one row that is meant, as the bad end has it."""
    context = event_context(source)
    rows = find_rows(source, options.label, context, None).rows
    chosen = [row for row in rows if row.row == options.only] or select(rows, options.only, options.label)
    names = [row.row for row in chosen]
    if len(names) != 1:
        some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise UsageError(f"a bisection follows one row, and --only {options.only!r} means {len(names)}", hint=some)
    return chosen[0]


@dataclass
class _Bisection:
    """One bisection under way. `streaks` are how many runs in a row a host has blocked, since this command began."""

    points: Sequence[Point]
    goal: BisectionGoal
    work: RowUnderTest
    state: BisectionState
    hosts: Sequence[str]
    axis: str = COMMIT
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
            self._print(
                f"interrupted after {report.runs(len(self.state.observations))}; the same command goes on from here"
            )
            return self._result(INTERRUPTED, [])
        return self._print_result(decision)

    def _decide(self) -> BisectionDecision:
        hosts = self._usable_hosts()
        return next_decision(self.goal, self.state.observations, len(hosts))

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
            point, must = self.points[chosen], chosen == self.goal.graph.bad
            commit_runs.append(CommitRun(chosen, point.sha, host, must, point.image, point.overlay))
        run_commits(self.work, commit_runs, self._print, self._record)

    def _record(self, observation: Observation) -> None:
        mark_text = str(mark(self.goal, [*self.state.observations, observation]))
        self.state.add(observation, mark_text)
        self._show(observation, mark_text, len(self.state.observations))
        streak = self.blocked_streaks.setdefault(observation.host, [])
        if observation.kind != BLOCKED:
            streak.clear()
            return
        streak.append(observation)
        if len(streak) >= _BLOCKED_AT_END and observation.position in (0, self.goal.graph.bad):
            self.out[observation.host] = observation.reason
            self._print(f"     {observation.host} is out: blocked {len(streak)} times in a row")

    def _print_earlier_runs(self) -> None:
        """Show what was found out before."""
        for number, (observation, mark_text) in enumerate(
            zip(self.state.observations, self.state.marks, strict=True), 1
        ):
            self._show(observation, mark_text, number)
        if self.state.observations:
            self._print(f"going on after {report.runs(len(self.state.observations))} of before ({self.state.path})")

    def _show(self, observation: Observation, mark_text: str, number: int) -> None:
        self._print(
            report.observation(
                number,
                self.points[observation.position],
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
        self._print(f"     {report.target(assessment.run_counts.target, at_bad.fails, at_bad.valid, to_go)}")
        self.target_printed = True

    def _print(self, text: str) -> None:
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
            IMAGE if self.axis == IMAGE else COMMIT,
        )
        if isinstance(decision, Undecided):
            left = [(self.points[position], probability) for position, probability in decision.left]
            self._print("\n".join(report.unclear(left, decision.distinguishable, effort)))
            return self._result(UNCLEAR, left)
        self._print(
            "\n".join(
                report.culprit(
                    self.points[decision.position],
                    decision.probability,
                    self._failure_counts(decision.position),
                    self._see(decision.position),
                    effort,
                )
            )
        )
        return self._result(FOUND, [(self.points[decision.position], decision.probability)])

    def _result(self, result: str, left: Sequence[tuple[Point, float]]) -> BisectionResult:
        candidates = tuple(
            CulpritCandidate(point.commit.sha, point.commit.subject, share, point.image) for point, share in left
        )
        return BisectionResult(result, EXIT_CODES[result], candidates, len(self.state.observations))

    def _see(self, position: int) -> str:
        """The command that shows the culprit: what a commit changed, or the row with the image before."""
        if self.axis != IMAGE:
            overlay = next((each for each in self.work.config.given.overlays if each.name == self.work.overlay), None)
            return report.see_commit(overlay.path if overlay else self.work.repo, self.points[position])
        before, work = self.points[position - 1], self.work
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
        good, bad = self.points[0].short, self.points[-1].short
        what = IMAGE if self.axis == IMAGE else COMMIT
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
