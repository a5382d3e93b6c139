"""The command `lint`: what is wrong with a checkout's CI before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.checkout.snapshot import take_snapshot
from ci_tasks.cli.options import JSON, repeatable
from ci_tasks.cli.shared import CheckoutOptions, print_result
from ci_tasks.errors import UnknownName, counted, printable
from ci_tasks.features.lint.rules import RULES, CheckoutFiles, LintFinding
from ci_tasks.features.lint.rules import lint as find
from ci_tasks.report.table import paragraph
from ci_tasks.resources import make_home
from ci_tasks.run.checkout_source import CheckoutSource, open_source
from ci_tasks.run.find_rows import list_jobs
from ci_tasks.safe_output import terminal_width
from ci_tasks.workflow.changed_tests import changed_jobs

EXIT_CODES = {"no finding": 0, "findings": 1}
_IGNORE = "all rules but this one; several with commas, or --ignore again"
_TEST = re.compile(r"tests/.*\.py", re.DOTALL)
_DOC = re.compile(r".*\.(?:md|rst)", re.DOTALL)
# Files whose commands CI may run. A script that no step names counts: another one may call it.
_COMMANDS = re.compile(r"\.github/workflows/[^/]+\.ya?ml(?:\.j2)?|\.github/actions/.*\.ya?ml|.*\.sh", re.DOTALL)


@dataclass(frozen=True)
class LintOptions(CheckoutOptions):
    ignore: tuple[str, ...] = repeatable(_IGNORE, "RULE", commas=True, complete=f"{__name__}:rule_names").field()
    json: bool = JSON.field()


def rule_names(_given: object, _typed: str) -> Iterable[str]:
    return RULES


def lint(options: LintOptions) -> int:
    """
    ci-tasks lint
    ci-tasks lint --ignore moving-image,no-timeout    all rules but these
    ci-tasks lint --rev v0.2.2 --json

    Errors come before warnings.
    """
    ignored = [name.strip() for item in options.ignore for name in item.split(",") if name.strip()]
    for name in ignored:
        if name not in RULES:
            raise UnknownName("rule", name, RULES)
    source = open_source(options.repo, options.rev, options.workflow)
    findings = [finding for finding in find(_read(source)) if finding.rule not in ignored]
    print_result(findings, lambda: [source.headline, *_lines(findings)], as_json=options.json)
    return EXIT_CODES["findings" if findings else "no finding"]


def _lines(findings: Sequence[LintFinding]) -> Iterator[str]:
    """Each finding with its fix; why a rule matters once, before its first finding."""
    width = terminal_width()
    for rule in dict.fromkeys(finding.rule for finding in findings):
        of_rule = [finding for finding in findings if finding.rule == rule]
        lines = ["", *paragraph(f"{rule} ({of_rule[0].level}): {of_rule[0].why}", width)]
        for finding in of_rule:
            lines += paragraph(f"{finding.file}:{finding.line}: {finding.message}", width, "  ")
            lines += paragraph(f"fix: {finding.fix}", width, "    ")
        yield from map(printable, lines)
    yield from ("", counted(len(findings), "finding") if findings else "no finding")


def _read(source: CheckoutSource) -> CheckoutFiles:
    """The checkout's tracked and untracked files, or the revision's."""
    snapshot = take_snapshot(source.path, make_home() / "sync" / "lint", rev=source.rev)
    names = snapshot.names()
    path = source.workflow.path.removesuffix(".j2")

    def texts(pattern: re.Pattern[str]) -> dict[str, str]:
        return {name: snapshot.read_file(name) or "" for name in names if pattern.fullmatch(name)}

    others = {name: text for name, text in texts(_COMMANDS).items() if name.removesuffix(".j2") != path}
    scripts = [step.run or "" for job in source.workflow.jobs.values() for step in job.steps]
    return CheckoutFiles(
        workflow=source.workflow, text=snapshot.read_file(path), template=snapshot.read_file(f"{path}.j2"),
        rows=list_jobs(source), tests=texts(_TEST), docs=texts(_DOC), files=frozenset(names),
        changed=[(job, frozenset(snapshot.select(job.rule.pathspecs))) for job in changed_jobs(source.workflow)],
        commands=[line for text in (*scripts, *others.values()) for line in text.replace("\\\n", " ").splitlines()],
    )  # fmt: skip
