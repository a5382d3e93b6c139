"""The command `lint`."""

from __future__ import annotations

from collections.abc import Iterable

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import REPO, REV, WORKFLOW, repeatable, switch, text
from ci_tasks.resources import user_path


@dataclass(frozen=True)
class LintOptions:
    format: str = text(
        "text, json, sarif (code scanning) or github (annotations of a pull request)",
        "FORMAT",
        default="text",
        choices=("text", "json", "sarif", "github"),
    ).field()
    json: bool = switch("same as --format json").field()
    rule: tuple[str, ...] = repeatable(
        "only this rule; several with commas, or --rule again",
        "NAME",
        commas=True,
        complete="ci_tasks.features.lint.command:rule_names",
    ).field()
    severity: str = text(
        "error: only errors; warning: errors and warnings", "LEVEL", default="warning", choices=("error", "warning")
    ).field()
    baseline: str | None = text("a file of known findings, which are not reported; it can only shrink", "FILE").field()
    write_baseline: str | None = text(
        "write that file from today's findings",
        "FILE",
        excludes=(("baseline", "the first writes the file that the second reads", "write it once, then name it"),),
    ).field()
    shrink: bool = switch("remove fixed findings from the baseline", needs="baseline").field()
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
    ci-tasks lint --rev v0.2.2 --json
    ci-tasks lint --write-baseline lint.json          today's findings, to live with
    ci-tasks lint --baseline lint.json --format github

    Errors come before warnings.
    """

    from ci_tasks.features.lint.lint_checkout import JSON, run_lint
    from ci_tasks.features.lint.lint_finding import select_rules
    from ci_tasks.run.checkout_source import open_source

    baseline = options.baseline or options.write_baseline
    return run_lint(
        open_source(options.repo, options.rev, options.workflow),
        JSON if options.json else options.format,
        select_rules(options.rule, options.severity),
        user_path(baseline) if baseline else None,
        shrink=options.shrink,
        write=options.write_baseline is not None,
    )
