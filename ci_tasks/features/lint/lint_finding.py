"""The rules of lint, and their findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ci_tasks.errors import UnknownName, UsageError


@dataclass(frozen=True)
class LintRule:
    """`why` it matters, in a sentence that stands on its own."""

    id: str
    title: str
    why: str
    is_error: bool = True

    @property
    def level(self) -> str:
        return "error" if self.is_error else "warning"


RULES = {
    rule.id: rule
    for rule in (
        LintRule(
            "template-drift",
            "the workflow is not what its template gives",
            "CI runs the .yml; whoever edits the .j2 next undoes what is only there",
        ),
        LintRule("missing-file", "a registered test file does not exist", "the row can only fail"),
        LintRule(
            "runs-nothing",
            "CI runs none of the tests of a file that it executes",
            "CI runs `python FILE`, which defines its tests, calls none of them and ends green",
        ),
        LintRule(
            "gpus-differ",
            "NUM_GPUS of the test is not the matrix's",
            "the row locks another number of GPUs than the test says it uses",
        ),
        LintRule(
            "no-num-gpus",
            "a file without NUM_GPUS that the job for changed tests selects",
            "that job reads from this line how many GPUs the file needs",
        ),
        LintRule(
            "unregistered",
            "a test is in no matrix, and only the job for changed tests selects it",
            "no label runs it, except the one for tests that the pull request itself adds or modifies",
            is_error=False,
        ),
        LintRule(
            "unreachable",
            "a test that no trigger reaches",
            "CI never runs it, not even for a pull request that changes it",
            is_error=False,
        ),
        LintRule("duplicate-row", "one job runs the same row twice", "the second one costs GPUs and shows nothing"),
        LintRule(
            "unknown-label",
            "a label in the docs starts no job",
            "a contributor adds it, and no job runs that would not run without it",
        ),
        LintRule(
            "no-timeout",
            "a job without timeout-minutes",
            "a hang holds its GPUs for GitHub's 6 hours, on a self-hosted runner for up to 5 days",
            is_error=False,
        ),
        LintRule(
            "moving-image",
            "an image by a tag that moves",
            "the same commit runs other code tomorrow, and a failure cannot be reproduced",
            is_error=False,
        ),
        LintRule(
            "installs-branch",
            "a step installs the framework from a branch",
            "the pull request's own code is not what is tested",
        ),
    )
}


def select_rules(names: Sequence[str], ignored: Sequence[str], severity: str) -> list[str]:
    """The rules `names`, or all, without those that are `ignored` and those below `severity`. Each item may be several
    with commas. Raises UnknownName, UsageError."""
    wanted, unwanted = _split(names), _split(ignored)
    for name in (*wanted, *unwanted):
        if name not in RULES:
            raise UnknownName("rule", name, RULES)
    rules = [
        name for name in wanted or RULES if name not in unwanted and (severity == "warning" or RULES[name].is_error)
    ]
    if not rules:
        raise UsageError("no rule is left to check", hint="--ignore and --severity error leave rules out")
    return rules


def _split(items: Sequence[str]) -> list[str]:
    return [name.strip() for item in items for name in item.split(",") if name.strip()]


@dataclass(frozen=True, order=True)
class LintFinding:
    """`file` from the checkout's root, `line` 1-based; `subject` names what it is about whatever the line: file, rule
    and subject tell a finding from every other."""

    file: str
    line: int
    rule: str
    message: str
    fix: str
    subject: str

    @property
    def why(self) -> str:
        return RULES[self.rule].why

    @property
    def level(self) -> str:
        return RULES[self.rule].level
