"""The command `lint`."""

from __future__ import annotations

from collections.abc import Iterable

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import REPO, REV, WORKFLOW, repeatable, switch, text


@dataclass(frozen=True)
class LintOptions:
    format: str = text(
        "text, json or github (annotations of a pull request)",
        "FORMAT",
        default="text",
        choices=("text", "json", "github"),
    ).field()
    json: bool = switch("same as --format json").field()
    rule: tuple[str, ...] = repeatable(
        "only this rule; several with commas, or --rule again",
        "NAME",
        commas=True,
        complete="ci_tasks.features.lint.command:rule_names",
    ).field()
    ignore: tuple[str, ...] = repeatable(
        "all rules but this one; several with commas, or --ignore again",
        "NAME",
        commas=True,
        complete="ci_tasks.features.lint.command:rule_names",
    ).field()
    severity: str = text(
        "error: only errors; warning: errors and warnings", "LEVEL", default="warning", choices=("error", "warning")
    ).field()
    repo: str | None = REPO.field()
    rev: str | None = REV.field()
    workflow: str | None = WORKFLOW.field()


def rule_names(_given: object, _typed: str) -> Iterable[str]:
    from ci_tasks.features.lint.lint_finding import RULES

    return RULES


def lint(options: LintOptions) -> int:
    """
    ci-tasks lint
    ci-tasks lint --severity error                    what is surely a mistake
    ci-tasks lint --rule unreachable,no-num-gpus      only these rules
    ci-tasks lint --ignore moving-image               all rules but this one
    ci-tasks lint --rev v0.2.2 --json
    ci-tasks lint --format github

    Errors come before warnings.
    """

    from ci_tasks.features.lint.lint_checkout import JSON, run_lint
    from ci_tasks.features.lint.lint_finding import select_rules
    from ci_tasks.run.checkout_source import open_source

    return run_lint(
        open_source(options.repo, options.rev, options.workflow),
        JSON if options.json else options.format,
        select_rules(options.rule, options.ignore, options.severity),
    )
