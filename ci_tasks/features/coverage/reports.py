"""What the CI covers, and what a change adds or removes: as Markdown for an issue, and as one self-contained HTML page.
The texts are in templates."""

from __future__ import annotations

import functools

import jinja2
from markupsafe import Markup, escape

from ci_tasks.features.coverage.coverage import BackendCoverage, CheckoutCoverage, CoveredTest, summary
from ci_tasks.features.coverage.describe import main_coverage
from ci_tasks.features.coverage.diff import CoverageDiff
from ci_tasks.features.coverage.matrix import matrix
from ci_tasks.recorder.records import RECORDED
from ci_tasks.report.html.templates import assets, harmless
from ci_tasks.report.html.templates import environment as html_environment

MARKDOWN, HTML = "md", "html"
_FOLDED = 12  # items of a gap from which on they are folded away


def coverage_report(coverage: CheckoutCoverage, format: str) -> str:
    """`format` is MARKDOWN or HTML."""
    template = _templates(format).get_template(f"coverage.{format}.j2")
    return template.render(
        coverage=coverage,
        matrix=matrix(coverage),
        backends=summary(coverage),
        origin=_origin(coverage),
        folded=_FOLDED,
        sections=[("matrix", "Features by label"), ("gaps", "Gaps"), ("tests", "Tests"), ("backends", "Backends")],
        assets=assets("features/coverage/coverage.js"),
    ).rstrip()


def diff_report(changed: CoverageDiff, format: str) -> str:
    """What is lost comes first: that is what a reviewer has to see."""
    changes = {
        "No longer exercised by any row": changed.lost,
        "Exercised for the first time": changed.gained,
        "Rows removed": changed.removed,
        "Rows added": changed.added,
        "Rows that changed": [
            f"{change.label}: {change.test}: {change.what}: {change.before or '–'} → {change.after or '–'}"
            for change in changed.altered
        ],
        "Gaps opened": changed.opened,
        "Gaps closed": changed.closed,
    }
    template = _templates(format).get_template(f"diff.{format}.j2")
    sections = [(f"change-{at}", title) for at, title in enumerate(filter(changes.get, changes), 1)]
    return template.render(changed=changed, changes=changes, sections=sections, assets=assets()).rstrip()


@functools.cache
def _templates(format: str) -> jinja2.Environment:
    environment = html_environment("features/coverage")
    if format == MARKDOWN:
        environment = environment.overlay(autoescape=False, finalize=str)
    environment.filters |= {"cell": escaped_markdown, "text": html_text}
    environment.filters |= {"main_coverage": main_coverage, "gpus": _gpus, "modes": _modes, "facts": _backend_facts}
    return environment


def escaped_markdown(text: object) -> str:
    """Text in a cell: a workflow's or a test's words must not end it, or begin markup."""
    shown = str(text)
    shown = shown if "`" in shown else shown.replace("*", "\\*")
    return " ".join(shown.replace("|", "\\|").replace("<", "&lt;").split())


def html_text(value: str) -> Markup:
    """What others wrote, as text of a page; `code` in backticks stands as code."""
    escaped = str(escape(harmless(value)))
    parts = escaped.split("`")
    if len(parts) % 2 == 0:
        return Markup(escaped)
    return Markup("".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts)))


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


def _backend_facts(backend: BackendCoverage) -> dict[str, str]:
    """Title → what the rows of a training backend cover, without what they do not."""
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
    return {title: ", ".join(values) for title, values in facts.items() if values}


def _gpus(test: CoveredTest) -> str:
    return "/".join(map(str, test.gpus)) or "?"
