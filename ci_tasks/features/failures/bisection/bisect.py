"""`bisect`: which commit, or which image, made a row fail, flaky or not, on one host or on several at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_tasks.checkout.commits import commit_at, commits_between, pinned_commit
from ci_tasks.checkout.repository import find_repository
from ci_tasks.config import Config
from ci_tasks.errors import UsageError, some
from ci_tasks.features.failures.bisection import report, strategy
from ci_tasks.features.failures.bisection.axis import (
    COMMIT,
    OVERLAY,
    SUBMODULE,
    SearchRange,
    along_commits,
    along_images,
    along_tree,
    images_of,
)
from ci_tasks.features.failures.bisection.bisection import Bisection, BisectionResult
from ci_tasks.features.failures.bisection.bisection_state import BisectionKey, open_state
from ci_tasks.features.failures.bisection.earlier_runs import earlier_runs
from ci_tasks.features.failures.bisection.run_commits import RowUnderTest
from ci_tasks.features.failures.bisection.strategy import BisectionGoal
from ci_tasks.given_values import GivenValues, OverlaySource
from ci_tasks.results.history import durations
from ci_tasks.run.checkout_source import CheckoutSource, event_context, open_source
from ci_tasks.run.events import EventStream
from ci_tasks.run.find_rows import find_rows
from ci_tasks.workflow.model import Row
from ci_tasks.workflow.rows import select

if TYPE_CHECKING:
    from ci_tasks.features.failures.options import BisectOptions


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
        is_commit = search.axis == COMMIT
        earlier = earlier_runs(source.path, good.key, options.label, row.row, own) if is_commit else ()
        goal = BisectionGoal(search.graph, options.signature or "", options.repeat or 0, earlier)
        print(source.headline)
        print("\n".join(report.head(options.label, row.row, search, hosts, len(earlier))))
        if not state.observations:
            lately = durations(options.label, hosts).get(row.row)
            steady = strategy.runs_of_steady_failure(len(search.points) - 1)
            print(report.cost(steady, lately, len(hosts)))
        return Bisection(search, goal, work, state, hosts).run()


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
    listed = options.images or ""
    file = Path(listed)
    listed = file.read_text(errors="replace") if file.is_file() else listed
    return along_images(commit, images_of(listed, options.good, options.bad))


def _overlay(source: CheckoutSource, axis: str) -> OverlaySource:
    """The overlay that the axis names. Raises UsageError."""
    name = axis.removeprefix(OVERLAY)
    given = {overlay.name: overlay for overlay in source.given.overlays}
    if name not in given:
        raise UsageError(
            f"--axis {axis} needs --with {name or 'NAME'}=DIR",
            hint=f"given: {', '.join(given)}" if given else "DIR is the working tree whose commits are searched",
        )
    if find_repository(Path(given[name].path)) is None:
        raise UsageError(
            f"--axis {axis}: {given[name].path} is no git repository",
            hint="name a checkout that has the commits, or search another axis",
        )
    return given[name]


def _row(source: CheckoutSource, options: BisectOptions) -> Row:
    """The one row that is meant, as the bad end has it."""
    context = event_context(source)
    rows = find_rows(source, options.label, context, None).rows
    chosen = [row for row in rows if row.row == options.only] or select(rows, options.only, options.label)
    names = [row.row for row in chosen]
    if len(names) != 1:
        raise UsageError(
            f"a bisection follows one row, and --only {options.only!r} means {len(names)}", hint=some(names, 8)
        )
    return chosen[0]
