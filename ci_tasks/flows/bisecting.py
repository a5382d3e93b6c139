"""`bisect`: which commit made a row fail, flaky or not, on one host or on several at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from ci_tasks.config import Config
from ci_tasks.errors import EXIT_CANCELLED, Blocked, UsageError
from ci_tasks.flows.bisect_runs import Order, Work, run_all
from ci_tasks.flows.bisect_state import State, Subject, opened
from ci_tasks.flows.outputs import find_rows
from ci_tasks.flows.source import Source, given_secrets, open_source, situation
from ci_tasks.judge.bisection import decide as ways
from ci_tasks.judge.bisection.decide import Decision, Found, Question, Refused, Run, Unclear, decide, stand
from ci_tasks.judge.bisection.evidence import BLOCKED, Observation
from ci_tasks.judge.bisection.lineage import Lineage
from ci_tasks.judge.bisection.marks import mark
from ci_tasks.report import bisect as report
from ci_tasks.suites import slime
from ci_tasks.sync.history import Commit, between

EXIT_FOUND, EXIT_UNCLEAR = 0, 1
_BLOCKED_AT_END = 2  # runs in a row that a host blocks, the last of them of a commit known to run: then it is the host
_BLOCKED_ELSEWHERE = 3  # runs in a row that a host blocks, after which it has to show that it can run anything


@dataclass(frozen=True)
class Asked:
    """What a person asked for. `only` picks the one row; `resume` and `fresh` say that there must be a state already,
    or that it does not count. The rest is as of `run`."""

    good: str
    bad: str
    label: str
    only: str
    hosts: tuple[str, ...] = ("local",)
    repeat: int = 0
    signature: str = ""
    first_parent: bool = False
    resume: bool = False
    fresh: bool = False
    repo: str = ""
    workflow: str = ""
    image: str = ""
    reuse: bool = False


def bisect(asked: Asked, config: Config) -> int:
    """Find the culprit, telling why each commit got its mark. Returns 0 where it was found, 1 where several are left.

    Raises UsageError where the ends are not good and bad, Blocked where no host can go on.
    """
    for host in asked.hosts:
        config.host(host)
    source = open_source(asked.repo or None, asked.bad, asked.workflow or None)
    row = _row(source, asked)
    history = between(source.path, asked.good, asked.bad, first_parent=asked.first_parent)
    subject = Subject(
        repo=str(source.path),
        good=history.good.sha,
        bad=history.bad.sha,
        label=asked.label,
        row=row,
        signature=asked.signature,
        image=asked.image,
        first_parent=asked.first_parent,
    )
    work = Work(
        repo=str(source.path),
        workflow=asked.workflow or None,
        label=asked.label,
        row=row,
        config=config,
        signature=asked.signature,
        image=asked.image or None,
        reuse=asked.reuse,
    )
    commits = (history.good, *history.commits)
    with opened(subject, [commit.sha for commit in commits], fresh=asked.fresh) as state:
        if asked.resume and not state.observations:
            raise UsageError("there is nothing to resume: no run of this bisection is on record", hint=str(state.path))
        question = Question(Lineage(history.positions()), asked.signature, asked.repeat)
        print(source.headline)
        print("\n".join(report.head(asked.label, row, history.good, history.bad, len(history.commits), asked.hosts)))
        return _Search(commits, question, work, state, asked.hosts).run()


def _row(source: Source, asked: Asked) -> str:
    """The name of the one row that is meant, as the bad end has it."""
    known = situation(source, secrets=given_secrets(source.workflow))
    found = find_rows(source, asked.label, known, None).rows
    chosen = [row for row in found if row.row == asked.only] or slime.select(found, asked.only, asked.label)
    names = [row.row for row in chosen]
    if len(names) != 1:
        some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise UsageError(f"a bisection follows one row, and --only {asked.only!r} means {len(names)}", hint=some)
    return names[0]


@dataclass
class _Search:
    """One bisection under way. `streaks` are how many runs in a row a host has blocked, since this command began."""

    commits: Sequence[Commit]
    question: Question
    work: Work
    state: State
    hosts: Sequence[str]
    streaks: dict[str, list[Observation]] = field(default_factory=dict)
    out: dict[str, str] = field(default_factory=dict)
    telling: threading.Lock = field(default_factory=threading.Lock)
    told_target: bool = False

    def run(self) -> int:
        self._recall()
        try:
            while isinstance(decision := self._decide(), Run):
                if not self.told_target and not {0, self.question.lineage.bad}.issuperset(decision.positions):
                    self._say_target()
                self._round(decision.positions)
        except KeyboardInterrupt:
            self._tell(
                f"interrupted after {report.runs(len(self.state.observations))}; the same command goes on from here"
            )
            return EXIT_CANCELLED
        return self._conclude(decision)

    def _decide(self) -> Decision:
        working = self._working()
        return decide(self.question, self.state.observations, len(working))

    def _working(self) -> list[str]:
        """The hosts that can run anything. Raises Blocked where none is left."""
        working = [host for host in self.hosts if host not in self.out]
        if not working:
            reasons = "; ".join(f"{host}: {why}" for host, why in self.out.items())
            raise Blocked(
                f"no host can run row {self.work.row} of a commit that should run: {reasons}",
                hint="`ci-tasks doctor --host NAME` says what a host lacks; the same command then goes on from here",
            )
        return working

    def _round(self, positions: Sequence[int]) -> None:
        orders = []
        for host, position in zip(self._working(), positions, strict=False):
            # A host that blocks commit after commit runs one that is known to run: is it the commits, or the host?
            in_doubt = len(self.streaks.get(host, ())) >= _BLOCKED_ELSEWHERE
            chosen = self.question.lineage.bad if in_doubt else position
            orders.append(Order(chosen, self.commits[chosen].sha, host, must=chosen == self.question.lineage.bad))
        run_all(self.work, orders, self._tell, self._take)

    def _take(self, seen: Observation) -> None:
        said = str(mark(self.question, [*self.state.observations, seen]))
        self.state.add(seen, said)
        self._show(seen, said, len(self.state.observations))
        streak = self.streaks.setdefault(seen.host, [])
        if seen.kind != BLOCKED:
            streak.clear()
            return
        streak.append(seen)
        if len(streak) >= _BLOCKED_AT_END and seen.position in (0, self.question.lineage.bad):
            self.out[seen.host] = seen.reason
            self._tell(f"     {seen.host} is out: blocked {len(streak)} times in a row")

    def _recall(self) -> None:
        """Show what was found out before."""
        for number, (seen, said) in enumerate(zip(self.state.observations, self.state.marks, strict=True), 1):
            self._show(seen, said, number)
        if self.state.observations:
            self._tell(f"going on after {report.runs(len(self.state.observations))} of before ({self.state.path})")

    def _show(self, seen: Observation, said: str, number: int) -> None:
        self._tell(report.observation(number, self.commits[seen.position], seen.host, said, seen.run, seen.seconds))

    def _say_target(self) -> None:
        """Once the ends are known: what is looked for, and how long it may take."""
        standing = stand(self.question, self.state.observations)
        at_bad = standing.seen.at(self.question.lineage.bad)
        to_go = ways.runs_to_go(standing.now)
        self._tell(f"     {report.looked_for(standing.seen.target, at_bad.fails, at_bad.valid, to_go)}")
        self.told_target = True

    def _tell(self, text: str) -> None:
        with self.telling:
            print(text, flush=True)

    def _conclude(self, decision: Found | Unclear | Refused) -> int:
        if isinstance(decision, Refused):
            raise self._refusal(decision)
        effort = report.Effort(
            len(self.state.observations),
            len({seen.position for seen in self.state.observations}),
            sum(seen.seconds or 0 for seen in self.state.observations),
        )
        if isinstance(decision, Unclear):
            left = [(self.commits[position], probability) for position, probability in decision.left]
            self._tell("\n".join(report.unclear(left, decision.apart, effort)))
            return EXIT_UNCLEAR
        self._tell(
            "\n".join(
                report.culprit(
                    self.commits[decision.position],
                    decision.probability,
                    self._seen(decision.position),
                    self.work.repo,
                    effort,
                )
            )
        )
        return EXIT_FOUND

    def _seen(self, culprit: int) -> report.Seen:
        within = self.question.lineage.descendants[culprit]
        counts = stand(self.question, self.state.observations).seen.counts
        after = [one for position, one in counts.items() if within >> position & 1]
        before = [one for position, one in counts.items() if not within >> position & 1]
        return report.Seen(
            sum(one.fails for one in after),
            sum(one.valid for one in after),
            sum(one.fails for one in before),
            sum(one.valid for one in before),
        )

    def _refusal(self, decision: Refused) -> UsageError:
        """Why the ends will not do, and what would."""
        good, bad = self.commits[0].sha[:12], self.commits[-1].sha[:12]
        at_good, at_bad = self._last(0), self._last(self.question.lineage.bad)
        if decision.why == ways.FAILS_AT_GOOD:
            return UsageError(
                f"--good {good} is not good: {self.work.row} fails there as it does at the bad end",
                hint="name an older commit as --good",
            )
        if decision.why == ways.GOOD_UNTESTABLE:
            return UsageError(
                f"--good {good} cannot be tested: {at_good}", hint="name a commit as --good where the row runs"
            )
        if decision.why == ways.BAD_UNTESTABLE:
            return UsageError(
                f"--bad {bad} does not fail with the signature that is looked for: {at_bad}",
                hint="leave --signature away, and the failure most seen at the bad end is looked for",
            )
        return UsageError(
            f"--bad {bad} is not bad: {self.work.row} did not fail there in {ways.MOST_AT_BAD} runs",
            hint="name a commit where it fails; for a failure as rare as that, --repeat of `run` measures the rate",
        )

    def _last(self, position: int) -> str:
        """What the last run without a pass at an end said."""
        said = [
            text
            for seen, text in zip(self.state.observations, self.state.marks, strict=True)
            if seen.position == position
        ]
        return said[-1] if said else "it was not run"
