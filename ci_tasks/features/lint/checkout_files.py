"""The files of a checkout that lint reads: a workflow, its template, its rows, the tests and the docs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.workflow.changed_tests import ChangedJob
from ci_tasks.workflow.model import Row, Workflow


@dataclass(frozen=True)
class CheckoutFiles:
    """`text` is the workflow file's own, `template` its template's (None where there is none), both by `workflow.path`
    and that path with .j2. `tests` and `docs` are texts by path; `files` all paths of the checkout. `framework` is the
    repository's name, such as slime. `changed` are the jobs for changed tests with the paths that git says they would
    select. `other_commands` are the lines of other workflows, and of this one's steps."""

    workflow: Workflow
    text: str | None
    template: str | None
    rows: Sequence[Row]
    tests: Mapping[str, str]
    docs: Mapping[str, str]
    files: frozenset[str]
    framework: str
    changed: Sequence[tuple[ChangedJob, frozenset[str]]] = ()
    other_commands: Sequence[str] = ()
    _lines: dict[str, list[str]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.workflow.path.removesuffix(".j2")

    @property
    def edited(self) -> str:
        """The file in which a person changes rows: the template, where there is one."""
        return self.path if self.template is None else f"{self.path}.j2"

    def place_of_row(self, row: Row) -> tuple[str, int]:
        """The file and line that register the row: of the lines that name its test file, the one that has its
        arguments too. A row that is only in the workflow is not in its template."""
        name = (row.test or row.row).removeprefix("tests/")
        for file, text in ((self.edited, self._edited_lines()), (self.path, (self.text or "").splitlines())):
            naming = [number for number, line in enumerate(text, 1) if _mentions(line, name)]
            exact = [number for number in naming if row.args and row.args in text[number - 1]]
            if naming:
                return file, next(iter(exact or naming))
        return self.edited, 1

    def line_of_job(self, job: str) -> int:
        """Where `edited` begins the job; in a template, where the job's name stands first."""
        begins = re.compile(rf"""^\s*['"]?{re.escape(job)}['"]?\s*:""")
        return next((number for number, line in self._numbered() if begins.match(line)), 1)

    def line_with(self, text: str) -> int:
        """The first line of `edited` that has `text`; 1 without one."""
        return next((number for number, line in self._numbered() if text in line), 1)

    def _numbered(self) -> list[tuple[int, str]]:
        return list(enumerate(self._edited_lines(), 1))

    def _edited_lines(self) -> list[str]:
        if self.edited not in self._lines:
            text = self.text if self.template is None else self.template
            self._lines[self.edited] = (text or "").splitlines()
        return self._lines[self.edited]


def _mentions(line: str, file: str) -> bool:
    return re.search(rf"(?<![\w./-])(?:tests/)?{re.escape(file)}(?![\w-])", line) is not None
