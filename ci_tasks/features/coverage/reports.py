"""What the CI covers, and what a change adds or removes, as markdown for an issue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ci_tasks.features.coverage.coverage import BackendCoverage, CheckoutCoverage, CoveredTest, LabelCoverage, summary
from ci_tasks.features.coverage.describe import main_coverage
from ci_tasks.features.coverage.diff import CoverageDiff
from ci_tasks.features.recorder.records import RECORDED


def coverage_report(coverage: CheckoutCoverage) -> str:
    lines = [
        "# CI coverage",
        "",
        f"{_cell(coverage.checkout)}, generated from `{coverage.workflow}` and what its tests launch, "
        f"{_origin(coverage)} by `ci-tasks coverage`. "
        "A row shows that a path is exercised, not that every combination is.",
        "",
        *_table(("Label", "Started by", "Rows", "Tests", "GPUs", "Image"), map(_label_cells, coverage.labels)),
    ]
    for label in coverage.labels:
        if not label.dynamic:
            lines += _label_section(label)
    lines += ["", "## Backends"]
    for name, backend in summary(coverage).items():
        lines += ["", f"### {_cell(name.capitalize())}", "", *_backend_facts(backend)]
    return "\n".join(lines)


def diff_report(changed: CoverageDiff) -> str:
    """What is lost comes first: a reviewer has to see that."""
    changes = {
        "No longer exercised by any row": changed.lost,
        "Exercised for the first time": changed.gained,
        "Rows removed": changed.removed,
        "Rows added": changed.added,
        "Rows that changed": [
            f"{change.label}: {change.test}: {change.what}: {change.before or '–'} → {change.after or '–'}"
            for change in changed.altered
        ],
    }
    lines = ["# CI coverage: what changes", "", f"From {_cell(changed.before)} to {_cell(changed.after)}."]
    for title, items in changes.items():
        if items:
            lines += ["", f"## {title} ({len(items)})", "", *(f"- {_cell(item)}" for item in items)]
    return "\n".join(lines if not changed.empty else [*lines, "", "The same coverage."])


def _label_cells(label: LabelCoverage) -> Iterator[str]:
    yield label.label
    yield _trigger(label)
    yield "by what changed" if label.dynamic else str(label.row_count)
    yield "by what changed" if label.dynamic else str(len(label.tests))
    yield ", ".join(map(str, label.gpus)) or "–"
    yield ", ".join(f"`{image}`" for image in label.images) or label.runner


def _label_section(label: LabelCoverage) -> list[str]:
    lines = ["", f"## {_cell(label.label)}", "", f"{_trigger(label)}, job `{label.job}`.", ""]
    if label.same_as:
        image = f", in `{label.images[0]}`" if label.images else ""
        return [*lines, f"The rows of {_cell(label.same_as)}{image}."]
    lines += _table(("Test", "GPUs", "Main coverage", "Checks"), map(_test_cells, label.tests))
    for test in label.tests:
        if modes := _modes(test):
            lines += ["", f"`{test.path}` is run {len(modes)} ways:", "", *(f"- {mode}" for mode in modes)]
    asserting = [(test.path, "; ".join(test.facts.checks.assertions)) for test in label.tests]
    asserted = [f"- `{path}`: {_cell(assertions)}" for path, assertions in asserting if assertions]
    return [*lines, "", "Asserted after the run:", "", *asserted] if asserted else lines


def _test_cells(test: CoveredTest) -> tuple[str, str, str, str]:
    gpus = "/".join(map(str, test.gpus)) or "?"
    return f"`{test.path}`", gpus, main_coverage(test), test.facts.checks.description


def _trigger(label: LabelCoverage) -> str:
    return f"`{label.trigger}`" if label.trigger else "always on"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
    ]


def _cell(text: str) -> str:
    """Text in a cell: a workflow's or a test's words must not end it, or begin markup."""
    shown = text if "`" in text else text.replace("*", "\\*")
    return " ".join(shown.replace("|", "\\|").replace("<", "&lt;").split())


def _origin(coverage: CheckoutCoverage) -> str:
    """How it is known what the tests launch."""
    origins = {row.facts.origin for _, test in coverage.tests() for row in test.rows if not test.missing}
    return "recorded under stubs" if RECORDED in origins else "as far as their syntax trees show (nothing was executed)"


def _modes(test: CoveredTest) -> list[str]:
    """For a test that several rows run: what each is given, and what only it exercises."""
    if len(test.rows) < 2:
        return []
    own = [", ".join(test.own(row)) for row in test.rows]
    arguments = [f"`{row.args}`" if row.args else "no arguments" for row in test.rows]
    return [f"{args}: {features}" if features else args for args, features in zip(arguments, own, strict=True)]


def _backend_facts(backend: BackendCoverage) -> list[str]:
    """What the rows of a training backend cover, a line each."""
    facts = {
        "Rows": (str(backend.rows),),
        "Dense models": backend.dense,
        "MoE models": backend.moe,
        "Algorithms": backend.algorithms,
        "Layouts": backend.layouts,
        "Placement": backend.placements,
        "PD": backend.pd,
        "Also": backend.features,
    }
    return [f"- {title}: {_cell(', '.join(values))}" for title, values in facts.items() if values]
