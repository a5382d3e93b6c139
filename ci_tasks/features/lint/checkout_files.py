"""What lint reads of a checkout, and what it says about it: a rule and its findings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.workflow.changed_tests import ChangedJob
from ci_tasks.workflow.model import Row, Workflow

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class CheckoutFiles:
    """`text` is the workflow file's own, `template` its template's (None without one), which is that path with .j2.
    `tests` and `docs` are texts by path; `files` all paths of the checkout. `changed` are the jobs for changed tests
    with the paths that git says they would select. `commands` are lines that CI may run: of the workflows' steps, of
    local actions and of shell scripts."""

    workflow: Workflow
    text: str | None
    template: str | None
    rows: Sequence[Row]
    tests: Mapping[str, str]
    docs: Mapping[str, str]
    files: frozenset[str]
    changed: Sequence[tuple[ChangedJob, frozenset[str]]] = ()
    commands: Sequence[str] = ()

    @property
    def path(self) -> str:
        return self.workflow.path.removesuffix(".j2")

    @property
    def edited(self) -> str:
        """The file in which a person changes jobs: the template, if there is one."""
        return self.path if self.template is None else f"{self.path}.j2"

    def line_of(self, pattern: str) -> int:
        """The first line of `edited` in which the pattern is found; 1 without one."""
        lines = (self.text if self.template is None else self.template or "") or ""
        return next((number for number, line in enumerate(lines.splitlines(), 1) if re.search(pattern, line)), 1)


@dataclass(frozen=True)
class LintFinding:
    """An entry of `lint --json`. `file` is named from the checkout's root, `line` counts from 1; `why` and `level` are
    the rule's."""

    file: str
    line: int
    rule: str
    message: str
    fix: str
    why: str
    level: str


@dataclass(frozen=True)
class LintRule:
    """`why` it matters is a sentence that stands on its own. `level` is `error` for what is surely a mistake."""

    name: str
    level: str
    why: str

    def finding(self, file: str, line: int, message: str, fix: str) -> LintFinding:
        return LintFinding(file, line, self.name, message, fix, self.why, self.level)
