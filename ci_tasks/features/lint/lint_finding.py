"""The rules of lint, and their findings."""

from __future__ import annotations

from dataclasses import dataclass


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
            "a registered file does nothing when it is run",
            "CI runs `python FILE`, which defines its tests, calls none of them and ends green",
        ),
        LintRule(
            "gpus-differ",
            "NUM_GPUS of the test is not the matrix's",
            "the row locks other GPUs than the test uses, and run-ci-changed yet others",
        ),
        LintRule("unregistered", "a test is in no matrix", "it runs only when somebody changes it", is_error=False),
        LintRule("duplicate-row", "one job runs the same row twice", "the second one costs GPUs and shows nothing"),
        LintRule("unknown-label", "a label in the docs starts no job", "a contributor adds it and nothing happens"),
        LintRule(
            "no-timeout",
            "a job without timeout-minutes",
            "a hang holds its GPUs for GitHub's 6 hours, on a self-hosted runner for up to 5 days",
            is_error=False,
        ),
        LintRule(
            "moving-image",
            "an image by a tag that moves",
            "the same commit runs other code tomorrow, and a failure cannot be had again",
            is_error=False,
        ),
        LintRule(
            "installs-branch",
            "a step installs the framework from a branch",
            "the pull request's own code is not what is tested",
        ),
    )
}


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
    def key(self) -> tuple[str, str, str]:
        return self.rule, self.file, self.subject

    @property
    def why(self) -> str:
        return RULES[self.rule].why

    @property
    def level(self) -> str:
        return RULES[self.rule].level
