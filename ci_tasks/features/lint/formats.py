"""Findings of lint as text, JSON and GitHub annotations."""

from __future__ import annotations

from collections.abc import Sequence

from ci_tasks.agent.codec import encode
from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import counted, printable
from ci_tasks.features.lint.lint_finding import LintFinding
from ci_tasks.report.table import paragraph
from ci_tasks.safe_output import json_document


@dataclass(frozen=True)
class PublicFinding:
    """An entry of `lint --json`: a finding, why its rule matters, and the rule's level."""

    file: str
    line: int
    rule: str
    message: str
    fix: str
    subject: str
    why: str
    level: str


def text(findings: Sequence[LintFinding], width: int | None = None) -> list[str]:
    """Each finding with its fix; why a rule matters once, before its first finding. In a terminal, words wrap."""
    lines: list[str] = []
    for rule in dict.fromkeys(finding.rule for finding in findings):
        of_rule = [finding for finding in findings if finding.rule == rule]
        lines += ["", *paragraph(f"{rule} ({of_rule[0].level}): {of_rule[0].why}", width)]
        for finding in of_rule:
            lines += paragraph(f"{finding.file}:{finding.line}: {finding.message}", width, "  ")
            lines += paragraph(f"fix: {finding.fix}", width, "    ")
    return [printable(line) for line in lines]


def summary(findings: Sequence[LintFinding]) -> str:
    """`12 findings: 8 runs-nothing, …`."""
    counts = {
        rule: sum(finding.rule == rule for finding in findings)
        for rule in dict.fromkeys(finding.rule for finding in findings)
    }
    parts = ", ".join(f"{count} {rule}" for rule, count in counts.items())
    return f"{counted(len(findings), 'finding')}: {parts}" if findings else "no finding"


def github(findings: Sequence[LintFinding]) -> list[str]:
    """Workflow commands of GitHub Actions, which show each finding at its line of the pull request."""
    return [
        f"::{finding.level} file={_property(finding.file)},line={finding.line},title={_property(finding.rule)}::"
        + _data(f"{finding.message}. {finding.why}. Fix: {finding.fix}")
        for finding in findings
    ]


def as_json(findings: Sequence[LintFinding]) -> str:
    entries = [PublicFinding(**vars(finding), why=finding.why, level=finding.level) for finding in findings]
    return json_document([encode(entry, versioned=False) for entry in entries])


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
