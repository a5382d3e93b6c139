"""`lint`: what is wrong with a checkout's CI before anything runs, from the working tree or a revision of it."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from ci_tasks import __version__
from ci_tasks.checkout.snapshot import Snapshot, take_snapshot
from ci_tasks.errors import UsageError
from ci_tasks.features.lint import baseline as baselines
from ci_tasks.features.lint import formats
from ci_tasks.features.lint.baseline import BaselineComparison
from ci_tasks.features.lint.checkout_files import CheckoutFiles
from ci_tasks.features.lint.rules import lint
from ci_tasks.results import store
from ci_tasks.run.checkout_source import CheckoutSource, event_context
from ci_tasks.run.listing import list_jobs
from ci_tasks.safe_output import terminal_width
from ci_tasks.workflow.changed_tests import changed_jobs

TEXT, JSON, SARIF, GITHUB = FORMATS = ("text", "json", "sarif", "github")
NO_FINDING, FINDINGS = "no finding", "findings"
EXIT_CODES = {NO_FINDING: 0, FINDINGS: 1}
_DOCS = (".md", ".rst")
_OTHER_WORKFLOW = re.compile(r"\.github/workflows/[^/]+\.ya?ml(\.j2)?")


def run_lint(
    source: CheckoutSource, form: str, rules: Collection[str], baseline: Path | None, *, shrink: bool, write: bool
) -> int:
    """Print the findings of `rules` in the format `form`. `baseline` is the file of known findings: `write` makes it,
    `shrink` removes what is fixed from it.

    Returns 1 where there are new findings, or fixed ones that are still in the baseline. Raises UsageError.
    """
    findings = [finding for finding in lint(checkout_files(source)) if finding.rule in rules]
    if baseline is not None and write:
        return _write(baseline, [finding.key for finding in findings])
    entries = _entries(baseline)
    comparison = baselines.compare(findings, entries, rules)
    if baseline is not None and shrink and comparison.fixed:
        baseline.write_text(baselines.write(sorted(entries - set(comparison.fixed))), encoding="utf-8")
    if form == JSON:
        print(formats.as_json(comparison.new))
    elif form == SARIF:
        print(formats.sarif(comparison.new, __version__))
    elif form == GITHUB:
        print("\n".join(formats.github(comparison.new)), end="\n" if comparison.new else "")
    else:
        print("\n".join([source.headline, *formats.text(comparison.new, terminal_width())]))
        _print_fixed(comparison, baseline, shrink)
    return EXIT_CODES[FINDINGS if comparison.new or (comparison.fixed and not shrink) else NO_FINDING]


def checkout_files(source: CheckoutSource) -> CheckoutFiles:
    """The checkout's tracked and untracked files, or those of the revision."""
    snapshot = take_snapshot(source.path, store.home() / "sync" / "lint", rev=source.rev)
    names = snapshot.names()
    path = source.workflow.path.removesuffix(".j2")
    steps = [step for job in source.workflow.jobs.values() for step in job.steps]
    others = [name for name in names if _OTHER_WORKFLOW.fullmatch(name) and name.removesuffix(".j2") != path]
    commands = [*(step.run or "" for step in steps), *(_text(snapshot, name) or "" for name in others)]
    return CheckoutFiles(
        workflow=source.workflow,
        text=_text(snapshot, path),
        template=_text(snapshot, f"{path}.j2"),
        rows=list_jobs(source),
        tests={name: _text(snapshot, name) or "" for name in names if re.fullmatch(r"tests/.*\.py", name, re.DOTALL)},
        docs={name: _text(snapshot, name) or "" for name in names if name.endswith(_DOCS)},
        files=frozenset(names),
        framework=event_context(source, secrets=()).repository.rpartition("/")[2],
        changed=[(job, frozenset(snapshot.select(job.rule.pathspecs))) for job in changed_jobs(source.workflow)],
        other_commands=[line for text in commands for line in text.splitlines()],
    )


def _text(snapshot: Snapshot, name: str) -> str | None:
    content = snapshot.read(name)
    return None if content is None else content.decode(errors="replace")


def _entries(baseline: Path | None) -> frozenset[baselines.Key]:
    if baseline is None:
        return frozenset()
    try:
        return baselines.read(baseline.read_text(encoding="utf-8"), str(baseline))
    except OSError as error:
        raise UsageError(
            f"{baseline} cannot be read: {error.strerror}",
            hint=f"`ci-tasks lint --write-baseline {baseline}` writes today's findings",
        ) from None


def _write(baseline: Path, keys: list[baselines.Key]) -> int:
    if baseline.exists():
        raise UsageError(
            f"{baseline} exists, and a baseline can only shrink",
            hint=f"`ci-tasks lint --baseline {baseline} --shrink` removes what is fixed",
        )
    baseline.write_text(baselines.write(keys), encoding="utf-8")
    print(f"{baseline}: {len(keys)} known findings")
    return 0


def _print_fixed(comparison: BaselineComparison, baseline: Path | None, shrink: bool) -> None:
    for rule, file, subject in comparison.fixed:
        print(f"\n{'removed from' if shrink else 'fixed, and still in'} {baseline}: {rule} {file} ({subject})")
    if comparison.fixed and not shrink:
        print("  fix: --shrink removes it")
    print(f"\n{formats.summary(comparison.new, len(comparison.baselined))}")
