"""Known findings that are not reported: a file that can only shrink."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.errors import UsageError
from ci_tasks.features.lint.lint_finding import RULES, LintFinding

Key = tuple[str, str, str]


@dataclass(frozen=True)
class BaselineComparison:
    """`new` findings are in no baseline; `baselined` ones are; `fixed` entries have no finding any more and must be
    removed."""

    new: tuple[LintFinding, ...]
    baselined: tuple[LintFinding, ...]
    fixed: tuple[Key, ...]


def read(text: str, file: str) -> frozenset[Key]:
    """The entries of a baseline file. Raises UsageError for a text that is none."""
    try:
        entries = json.loads(text)["findings"]
        return frozenset((str(entry["rule"]), str(entry["file"]), str(entry["subject"])) for entry in entries)
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{file} is no baseline file", hint="`ci-tasks lint --write-baseline FILE` makes one"
        ) from None


def write(entries: Sequence[Key]) -> str:
    """The text of a baseline file, in one order, so that its history shows what left it."""
    listed = [{"rule": rule, "file": file, "subject": subject} for rule, file, subject in sorted(set(entries))]
    return json.dumps({"version": 1, "findings": listed}, indent=1, ensure_ascii=False) + "\n"


def compare(
    findings: Sequence[LintFinding], entries: frozenset[Key], rules: Collection[str] = RULES.keys()
) -> BaselineComparison:
    """Which findings are new, and which entries are fixed. An entry of a rule that was not checked is neither."""
    keys = {finding.key for finding in findings}
    return BaselineComparison(
        new=tuple(finding for finding in findings if finding.key not in entries),
        baselined=tuple(finding for finding in findings if finding.key in entries),
        fixed=tuple(sorted(key for key in entries - keys if key[0] in rules or key[0] not in RULES)),
    )
