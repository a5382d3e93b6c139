"""`bisect`: which commit, or which image, made a row fail, flaky or not, on one host."""

from __future__ import annotations

import shlex
from dataclasses import replace
from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.repository import Commit, commit_at, commits_between, parent_positions, pinned_commit
from ci_tasks.config import Config
from ci_tasks.errors import CheckoutError, UsageError, counted, printable, some
from ci_tasks.given_values import OverlaySource
from ci_tasks.hosts.executor import take_host_snapshot
from ci_tasks.report.table import Table
from ci_tasks.run.checkout_source import CheckoutSource, ExecutionOptions, RunRequest, open_source
from ci_tasks.run.events import EventStream
from ci_tasks.run.label import execute_label
from ci_tasks.trials.bisection import ENDS, FOUND, Bisect, CommitGraph
from ci_tasks.trials.report import moved_images
from ci_tasks.trials.rules import TrialVerdict
from ci_tasks.trials.trial import Execute, Runner, Subject, Trial, cost, rows_named
from ci_tasks.trials.words import BISECT, CANCELLED

if TYPE_CHECKING:
    from ci_tasks.trials.options import BisectOptions

COMMIT, IMAGE, OVERLAY, SUBMODULE = "commit", "image", "overlay:", "submodule:"
_SHORT = 12


@dataclass(frozen=True)
class CulpritCandidate:
    """`commit` is what ran, or the overlay's; with `--axis image`, `image` is the culprit."""

    commit: str
    subject: str
    probability: float
    image: str = ""


@dataclass(frozen=True)
class BisectionResult:
    """As `bisect --json` prints it. `result` is a word of the table of bisect; `candidates` are commits or images, the
    most probable first, and one if it was found. `runs` is how many runs it took."""

    result: str
    exit_code: int
    candidates: tuple[CulpritCandidate, ...]
    runs: int


@dataclass(frozen=True)
class Search:
    """What is searched: `settings` by key from the good end to the bad one, commits of the repository at `path`, or
    images; `revision` is the commit of the checkout that runs with each, "" if its commits are searched."""

    axis: str
    path: Path
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
    """Find the culprit. Raises Blocked if the host cannot continue."""
    config.host(options.host)
    is_submodule = options.axis.startswith(SUBMODULE)
    revision = options.rev or (options.bad if options.axis == COMMIT or is_submodule else None) or "HEAD"
    source = open_source(options.repo, revision, options.workflow, config.given)
    options = replace(options, label=source.label_of(options.label))
    chosen = rows_named(source, options.label, options.only)  # as the bad end has them
    if len(chosen) != 1:
        names = some([row.row for row in chosen], 8)
        raise UsageError(f"a bisection follows one row, and --only {options.only!r} means {len(chosen)}", hint=names)
    row = chosen[0].row
    if options.axis == IMAGE and any(host.runtime == "none" for host in config.select_hosts(options.host)):
        raise UsageError(f"host {options.host} runs no container", hint="name a host with another `runtime`")
    if is_submodule:
        path = options.axis.removeprefix(SUBMODULE)
        submodule = OverlaySource(path, str(source.path / path), submodule=path)
        config = replace(config, given=replace(config.given, overlays=(*config.given.overlays, submodule)))
    search = _search(source, options, revision)
    keys, image, probe = [*search.settings], options.image, not options.no_probe
    request = RunRequest(options.label, None, options.host, image=image, rows=(row,), probe=probe)
    # The overlays that are not searched, which have to stay as they are.
    stay = [each for each in source.given.overlays if options.axis != OVERLAY + each.name]

    def overlay_trees() -> dict[str, str]:
        return {each.path: each.tree for each in take_host_snapshot(source.path, source.rev, stay).checkout.overlays}

    def subject(key: str) -> Subject:
        if stay and overlay_trees() != overlays:
            raise CheckoutError("a tree of --with has changed since the trial began", hint="run the same command again")
        given, at = config.given, search.revision or key
        if search.revision and search.axis != IMAGE:
            given = given.with_overlay_at(search.axis.partition(":")[2], key)
        asked = replace(request, image=key) if search.axis == IMAGE else request
        return Subject(open_source(str(source.path), at, options.workflow, given), asked)

    overlays = overlay_trees() if stay else {}
    runner = Runner(config, subject, ExecutionOptions(events=events), known_to_run=keys[-1], execute=execute)
    rule = Bisect(keys, search.graph, options.signature or "")
    more = {"label": options.label, "repo": str(source.path), "signature": rule.target}
    more |= {"revision": search.revision, "axis": search.axis, "asked": source.asked_key(config, request), **overlays}
    settings = {key: key for key in keys}
    with Trial("bisect", settings, [row], runner, more=more, resume=not options.fresh, name=search.short) as trial:
        steady = 2 * ENDS + ceil(log2(len(keys) - 1)) + 4  # the ends, the halvings, and some that confirm it
        many, ends = counted(len(keys) - 1, search.noun), [search.short(key) for key in (keys[0], keys[-1])]
        lines = [
            source.headline,
            f"bisect: {many} after {ends[0]} (good) up to {ends[1]} (bad)",
            f"row {row} of label {options.label}, on {options.host}",
            f"if it always fails: {cost(steady, options.label, [options.host], [row])}; more if it is flaky",
        ]
        print("\n".join(map(printable, lines)), flush=True)
        trial.run(lambda *_: rule)
    return _result(trial, search)


def _search(source: CheckoutSource, options: BisectOptions, revision: str) -> Search:
    """What is searched. Raises UsageError, CheckoutError."""
    axis, path, bad = options.axis, source.path, options.bad or "HEAD"
    good, name = options.good or "", axis.partition(":")[2]
    if axis == IMAGE:
        images, commit = images_of(options.images or ""), commit_at(path, revision)
        settings = dict.fromkeys(images, commit)
        return Search(axis, path, settings, CommitGraph.linear(len(images) - 1), commit.sha)
    if axis == COMMIT:
        bad = revision
    elif axis.startswith(OVERLAY):
        given = {overlay.name: Path(overlay.path) for overlay in source.given.overlays}
        if name not in given:
            hint = "DIR is the working tree whose commits are searched"
            raise UsageError(f"--axis overlay:{name} needs --with {name or 'NAME'}=DIR", hint=hint)
        path = given[name]
    else:
        good, bad = (pinned_commit(path, rev, name) for rev in (good, bad))
        path = path / name
    history = commits_between(path, good, bad, first_parent=options.first_parent)
    settings = {commit.sha: commit for commit in history}
    at = "" if axis == COMMIT else commit_at(source.path, revision).sha
    return Search(axis, path, settings, CommitGraph(parent_positions(history)), at)


def images_of(listed: str) -> tuple[str, ...]:
    """The images of a list with commas, or of a file with a line each. Raises UsageError."""
    text = Path(listed).read_text(errors="replace") if Path(listed).is_file() else listed
    names = [name.partition(" #")[0].strip() for name in text.replace(",", "\n").splitlines()]
    images = [name for name in names if name and not name.startswith("#")]
    if len(images) < 2 or len({*images}) < len(images):
        message = f"--images takes two different images or more, not {len(images)} of {listed}"
        raise UsageError(message, hint="`--images OLDEST,…,NEWEST`, or a file with one image per line")
    return tuple(images)


def _result(trial: Trial, search: Search) -> BisectionResult:
    """Say how it ended."""
    runs = len(trial.outcomes)
    if trial.is_interrupted:
        print(f"interrupted after {counted(runs, 'run')}; {trial.how_to_continue}", flush=True)
        return BisectionResult(CANCELLED, BISECT[CANCELLED], (), runs)
    verdict = trial.verdict(trial.rows[0])
    effort = f"{counted(runs, 'run')} of {counted(len({one.setting for one in trial.outcomes}), search.noun)}"
    images = moved_images(trial.outcomes) if search.axis != IMAGE else []
    print("\n".join(["", *_culprit(search, verdict), *images, effort]), flush=True)
    candidates = []
    for key, share in verdict.likely:
        commit, image = search.settings[key], key if search.axis == IMAGE else ""
        candidates.append(CulpritCandidate(commit.sha, commit.subject, share, image))
    return BisectionResult(verdict.word, BISECT[verdict.word], tuple(candidates), runs)


def _culprit(search: Search, verdict: TrialVerdict) -> list[str]:
    if not verdict.likely:
        return [printable(f"{verdict.word}: {verdict.why}")]
    if verdict.word != FOUND:
        chances = [(f"    {share:.0%}", key, search.settings[key].subject) for key, share in verdict.likely]
        return [f"{verdict.why}; the culprit is one of:", *Table(chances).text()]
    key = verdict.likely[0][0]
    commit, promise = search.settings[key], f"probability {verdict.promise:.0%} or more: " if verdict.promise else ""
    lines = [f"the culprit: {key}", promise + verdict.why]
    if search.axis != IMAGE:
        lines[1:1] = [f"    {commit.subject}", f"    {commit.author}, {commit.date}"]
        lines.append(f"see it: git -C {shlex.quote(str(search.path))} show {key[:_SHORT]}")
    return [printable(line) for line in lines]
