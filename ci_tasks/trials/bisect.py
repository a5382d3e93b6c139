"""`bisect`: which commit, or which image, made a row fail, flaky or not, on one host or on several at once."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.commits import Commit, commit_at, commits_between, commits_up_to, pinned_commit
from ci_tasks.checkout.repository import find_repository
from ci_tasks.config import Config
from ci_tasks.errors import UsageError, counted, one_line, printable, some
from ci_tasks.given_values import GivenValues, OverlaySource
from ci_tasks.records import FAILED
from ci_tasks.report.table import duration
from ci_tasks.results import history
from ci_tasks.run.checkout_source import CheckoutSource, event_context, open_source
from ci_tasks.run.events import EventStream, Message, now
from ci_tasks.run.find_rows import find_rows
from ci_tasks.run.label import execute_label
from ci_tasks.run.request import ExecutionOptions, RunRequest
from ci_tasks.trials import bisection, report
from ci_tasks.trials.bisection import FOUND, NOT_BAD, NOT_GOOD, OLDER_THAN_GOOD, UNTESTABLE, Bisect
from ci_tasks.trials.commit_graph import CommitGraph
from ci_tasks.trials.rules import MISSING, PASSED, Outcome, TrialVerdict
from ci_tasks.trials.runner import Execute, Runner, Subject, expected_seconds, given_key, outcome_of, ran_tests
from ci_tasks.trials.trial import Trial
from ci_tasks.trials.words import BISECT, CANCELLED
from ci_tasks.workflow.rows import select

if TYPE_CHECKING:
    from ci_tasks.trials.options import BisectOptions

COMMIT, IMAGE, OVERLAY, SUBMODULE = "commit", "image", "overlay:", "submodule:"
_SHORT, _MANY = 12, 12
_HISTORY_COMMITS, _HISTORY_RUNS = 5000, 500  # the newest ones, by which the background rate is estimated
_LIST = "`--images OLDEST,…,NEWEST`, or a file with one image in each line"


@dataclass(frozen=True)
class CulpritCandidate:
    """`commit` is what ran, or the overlay's; with `--axis image`, `image` is the culprit."""

    commit: str
    subject: str
    probability: float
    image: str = ""


@dataclass(frozen=True)
class BisectionResult:
    """As `bisect --json` prints it. `result` is found, unclear or cancelled; `candidates` are commits or images, the
    most probable first, and one where it was found. `runs` is how many runs it took."""

    result: str
    exit_code: int
    candidates: tuple[CulpritCandidate, ...]
    runs: int


@dataclass(frozen=True)
class Search:
    """What is searched: `settings` by key from the good end to the bad one, commits of the checkout, of an overlay or
    a submodule, or images; `revision` is the commit of the checkout that runs with each, "" if commits are searched."""

    axis: str
    settings: dict[str, Commit]
    graph: CommitGraph
    revision: str

    @property
    def noun(self) -> str:
        return "image" if self.axis == IMAGE else "commit"

    def short(self, key: str) -> str:
        if self.axis != IMAGE:
            return key[:_SHORT]
        name, at, digest = printable(key).rpartition("/")[2].partition("@")
        return f"{name}{at}{digest[: len('sha256:') + _SHORT]}"


def bisect(
    options: BisectOptions, config: Config, events: EventStream | None = None, *, execute: Execute = execute_label
) -> BisectionResult:
    """Find the culprit, with a reason for each run's mark. Raises UsageError if the ends are not good and bad, Blocked
    if no host can go on."""
    hosts = tuple(name for name in (part.strip() for part in options.host.split(",")) if name)
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
    search = _search(source, options, revision, row)
    keys = [*search.settings]

    def subject(key: str) -> Subject:
        given, at = config.given, search.revision or key
        if search.revision and search.axis != IMAGE:
            given = given.with_overlay_at(search.axis.removeprefix(OVERLAY).removeprefix(SUBMODULE), key)
        image = key if search.axis == IMAGE else options.image
        request = RunRequest(options.label, None, "", image=image, rows=(row,), probe=not options.no_probe)
        return Subject(open_source(str(source.path), at, options.workflow, given), request)

    def say(text: str) -> None:
        print(text, flush=True)
        if events:
            events.write(Message(now(), text.strip()))

    how = ExecutionOptions(events=events)
    runner = Runner(config, subject, hosts, how, known_to_run=keys[-1], say=say, execute=execute)
    more = {"label": options.label, "repo": str(source.path), "signature": options.signature or ""}
    more |= {"image": options.image or "", "revision": search.revision, "axis": search.axis, **given_key(config.given)}
    settings = {key: key for key in keys}
    trial = Trial("bisect", settings, [row], runner, more=more, at_once=True, resume=not options.fresh, say=say)
    with trial:
        if options.resume and not trial.outcomes:
            raise UsageError("there is nothing to resume: no run of this bisection is on record", hint=str(trial.path))
        earlier = _earlier(source, options, row, keys[0], trial) if search.axis == COMMIT else []
        rule = Bisect(keys, search.graph, options.signature or "", options.repeat or 0, len(hosts), earlier)
        trial.show = _shown(trial, search, rule)
        print(source.headline)
        for line in _head(options, row, search, hosts, len(earlier)):
            say(line)
        trial.run(lambda row, known: rule)
    return _result(trial, search, rule, _see(search, options, source, hosts[0], row), say)


def _row(source: CheckoutSource, options: BisectOptions) -> str:
    """The one row that is meant, as the bad end has it."""
    rows = find_rows(source, options.label, event_context(source), None).rows
    chosen = [row for row in rows if row.row == options.only] or select(rows, options.only, options.label)
    if len(chosen) != 1:
        names = some([row.row for row in chosen], 8)
        raise UsageError(f"a bisection follows one row, and --only {options.only!r} means {len(chosen)}", hint=names)
    if options.axis == IMAGE and not chosen[0].image:
        hint = "`ci-tasks jobs LABEL` shows the image of each row"
        raise UsageError(f"row {chosen[0].row} runs in no container, so no image can be its culprit", hint=hint)
    return chosen[0].row


def _search(source: CheckoutSource, options: BisectOptions, revision: str, row: str) -> Search:
    """What is searched. Raises UsageError, CheckoutError."""
    axis, path = options.axis, source.path
    good, bad = options.good or "", options.bad or "HEAD"
    if axis == IMAGE:
        listed = options.images or ""
        text = Path(listed).read_text(errors="replace") if Path(listed).is_file() else listed
        images = images_of(text, options.good, options.bad)
        commit = commit_at(path, revision)
        return Search(axis, dict.fromkeys(images, commit), CommitGraph.linear(len(images) - 1), commit.sha)
    if axis.startswith(OVERLAY):
        path = _overlay(source, axis)
    elif axis.startswith(SUBMODULE):
        name = axis.removeprefix(SUBMODULE)
        good, bad = (pinned_commit(path, rev, name) for rev in (good, bad))
        path = path / name
    commits = commits_between(path, good, revision if axis == COMMIT else bad, first_parent=options.first_parent)
    settings = {commit.sha: commit for commit in (commits.good, *commits.commits)}
    at = "" if axis == COMMIT else commit_at(source.path, revision).sha
    return Search(axis, settings, CommitGraph(commits.positions()), at)


def _overlay(source: CheckoutSource, axis: str) -> Path:
    """The directory of the overlay that the axis names. Raises UsageError."""
    name = axis.removeprefix(OVERLAY)
    given = {overlay.name: Path(overlay.path) for overlay in source.given.overlays}
    if name not in given:
        hint = f"given: {', '.join(given)}" if given else "DIR is the working tree whose commits are searched"
        raise UsageError(f"--axis {axis} needs --with {name or 'NAME'}=DIR", hint=hint)
    if find_repository(given[name]) is None:
        hint = "name a checkout that has the commits, or search another axis"
        raise UsageError(f"--axis {axis}: {given[name]} is no git repository", hint=hint)
    return given[name]


def images_of(text: str, good: str | None = None, bad: str | None = None) -> tuple[str, ...]:
    """The images that `text` names, divided by commas or lines, from `good` to `bad`. Raises UsageError."""
    names = [name.partition(" #")[0].strip() for name in text.replace(",", "\n").splitlines()]
    images = [name for name in names if name and not name.startswith("#")]
    if twice := next((name for name in images if images.count(name) > 1), ""):
        raise UsageError(f"--images names {twice} twice", hint=_LIST)
    if len(images) < 2:
        message = f"{text} names one image, and is no file" if images == [text] else "fewer than two images"
        raise UsageError(f"--images: {message}", hint=_LIST)
    for option, name in (("--good", good), ("--bad", bad)):
        if name is not None and name not in images:
            raise UsageError(f"{option} {name} is not one of --images", hint=some(images, 8))
    first, last = images.index(good or images[0]), images.index(bad or images[-1])
    if last <= first:
        raise UsageError(f"--good {images[first]} is not before --bad {images[last]} in --images", hint=_LIST)
    return tuple(images[first : last + 1])


def _earlier(source: CheckoutSource, options: BisectOptions, row: str, good: str, trial: Trial) -> list[Outcome]:
    """Runs of the row on clean trees of `good` and of what is older, on any host: how often it fails by chance."""
    query = history.RunQuery(label=options.label, row=(row,), status=(PASSED, FAILED), limit=_HISTORY_RUNS)
    own = {one.run for one in trial.outcomes}
    known = [record for record in history.search(query) if record.row == row and record.id not in own]
    known = [record for record in known if record.checkout and not record.checkout.dirty]
    known = [record for record in known if ran_tests(record, source.given.tests)]
    older = commits_up_to(source.path, good, _HISTORY_COMMITS) if known else frozenset()
    found = [(record.checkout.commit, record) for record in known if record.checkout]
    return [
        outcome_of(good if commit == good else OLDER_THAN_GOOD, record) for commit, record in found if commit in older
    ]


def _head(options: BisectOptions, row: str, search: Search, hosts: Sequence[str], earlier: int) -> list[str]:
    """What is going to happen, and the cost if the row always fails with the culprit and never without it: the runs of
    the ends, the halvings, and some that confirm it."""
    keys = [*search.settings]
    many = counted(len(keys) - 1, search.noun) + (
        "" if ":" not in search.axis else f" of {search.axis.replace(':', ' ')}"
    )
    fixed = f", with commit {search.revision[:_SHORT]}" if search.revision else ""
    steady = 2 * bisection.ENDS + ceil(log2(len(keys) - 1)) + 4
    cost = report.cost(steady, expected_seconds(options.label, row, hosts), len(hosts))
    history_has = f"{counted(earlier, 'run')} of commits up to the good end on record tell how often it fails by chance"
    return [
        f"bisect: {many} after {search.short(keys[0])} (good) up to {search.short(keys[-1])} (bad){fixed}",
        printable(f"row {row} of label {options.label}, on {', '.join(hosts)}"),
        *([history_has] if earlier else []),
        f"if it always fails: {cost}; more if it is flaky",
    ]


def _shown(trial: Trial, search: Search, rule: Bisect) -> Callable[[int, Outcome], str]:
    """The line of a run, with what it says of its setting and why."""

    def shown(number: int, one: Outcome) -> str:
        took = f", {duration(one.seconds)}" if one.seconds is not None else ""
        run = f" [{one.run}{took}]" if one.run else ""
        mark = one_line(_mark(rule, trial.outcomes[:number], one))
        return f"{number:>3}  {search.short(one.setting)}  {one.host:<8}  {mark}{run}"

    return shown


def _mark(rule: Bisect, outcomes: Sequence[Outcome], last: Outcome) -> str:
    """Whether a setting is good or bad, or why it is skipped, in the light of the runs so far."""
    seen, at = rule.count(outcomes), list(rule.settings).index(last.setting)
    runs = counted(seen.told(at), "run")
    if not last.counts:
        return f"skip: {last.reason if last.status == MISSING else f'{last.status}: {last.reason}'}"
    if last.status == FAILED and seen.target not in (last.signature, last.kind):
        return f"skip: another failure: {last.signature}"
    if seen.fails[at]:
        how, what = ("passes this time, fails", "") if last.status == PASSED else ("fails", f": {last.signature}")
        return f"bad: {how} in {seen.fails[at]} of {runs}{what}"
    return f"{'unclear' if at == rule.graph.bad else 'good so far'}: passes in {seen.passes[at]} of {runs}"


def _see(search: Search, options: BisectOptions, source: CheckoutSource, host: str, row: str) -> Callable[[str], str]:
    """Gives the command that shows a culprit: what a commit changed, or the row with the image before it."""

    def see(key: str) -> str:
        if search.axis != IMAGE:
            path = str(source.path)
            if search.axis.startswith(OVERLAY):
                path = str(_overlay(source, search.axis))
            elif search.axis.startswith(SUBMODULE):
                path = str(source.path / search.axis.removeprefix(SUBMODULE))
            return f"git -C {shlex.quote(printable(path))} show {key[:_SHORT]}"
        keys = [*search.settings]
        before = shlex.quote(keys[keys.index(key) - 1])
        words = f"{shlex.quote(options.label)} --only {shlex.quote(row)} --rev {search.revision[:_SHORT]}"
        return f"ci-tasks remote --host {host} {words} --image {before}   (the image before it)"

    return see


def _result(
    trial: Trial, search: Search, rule: Bisect, see: Callable[[str], str], say: Callable[[str], None]
) -> BisectionResult:
    """Say how it ended. Raises UsageError for ends that will not do."""
    runs = len(trial.outcomes)
    if trial.is_interrupted:
        say(f"interrupted after {counted(runs, 'run')}; the same command goes on from here")
        return BisectionResult(CANCELLED, BISECT[CANCELLED], (), runs)
    verdict = trial.verdict(trial.rows[0])
    if verdict.word in (NOT_BAD, NOT_GOOD, UNTESTABLE):
        raise _refusal(trial, search, rule, verdict)
    seconds = sum(one.seconds or 0 for one in trial.outcomes)
    settings = {one.setting for one in trial.outcomes}
    effort = f"{counted(runs, 'run')} of {counted(len(settings), search.noun)}, {duration(seconds)} of tests"
    if verdict.word == FOUND:
        key, share = verdict.likely[0]
        commit = search.settings[key]
        about = [f"    {one_line(commit.subject)}", f"    {one_line(commit.author)}, {commit.date}"]
        share = verdict.promise or share
        promise = f"probability {_share(share)} or more: " if verdict.promise else ""
        lines = [f"the culprit: {printable(key)}", *([] if search.axis == IMAGE else about)]
        lines += [f"{promise}{verdict.why}", f"see it: {see(key)}"]
    else:
        lines = [f"{verdict.why}; the culprit is one of:"]
        lines += [_likely(search, key, share) for key, share in verdict.likely[:_MANY]]
        lines += [f"    and {len(verdict.likely) - _MANY} more"] if len(verdict.likely) > _MANY else []
    say("\n".join(["", *lines, effort]))
    candidates = (
        CulpritCandidate(
            commit.sha,
            commit.subject,
            verdict.promise or share if verdict.word == FOUND else share,
            key if search.axis == IMAGE else "",
        )
        for key, share in verdict.likely
        for commit in [search.settings[key]]
    )
    return BisectionResult(verdict.word, BISECT[verdict.word], tuple(candidates), runs)


def _likely(search: Search, key: str, share: float) -> str:
    subject = key if search.axis == IMAGE else search.settings[key].subject
    return f"    {search.short(key)}  {_share(share):>4}  {one_line(subject)}"


def _share(probability: float) -> str:
    return f"{min(99, int(probability * 100))} %"  # nothing that may be flaky is ever wholly certain


def _refusal(trial: Trial, search: Search, rule: Bisect, verdict: TrialVerdict) -> UsageError:
    """Why the ends will not do, and what would."""
    key = verdict.why
    is_good, short, row = key == rule.settings[0], search.short(key), trial.rows[0]
    last = next(one for one in reversed(trial.outcomes) if one.setting == key)
    seen = _mark(rule, trial.outcomes, last)
    if verdict.word == NOT_GOOD:
        message = f"--good {short} is not good: {row} fails there as it does at the bad end"
        return UsageError(message, hint=f"name an older {search.noun} as --good")
    if verdict.word == NOT_BAD:
        message = f"--bad {short} is not bad: {row} did not fail there in {bisection.MOST_AT_BAD} runs"
        hint = "name one where it fails; for a failure as rare as that, --repeat of `run` measures the rate"
        return UsageError(message, hint=hint)
    if is_good:
        return UsageError(f"--good {short} cannot be tested: {seen}", hint="name one as --good where the row runs")
    hint = "leave --signature away, and the failure most seen at the bad end is looked for"
    return UsageError(f"--bad {short} does not fail with the signature that is looked for: {seen}", hint=hint)
