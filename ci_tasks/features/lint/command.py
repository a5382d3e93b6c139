"""The command `lint`."""

from __future__ import annotations

from collections.abc import Iterable

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import JSON, REPO, REV, WORKFLOW, repeatable


@dataclass(frozen=True)
class LintOptions:
    ignore: tuple[str, ...] = repeatable(
        "all rules but this one; several with commas, or --ignore again",
        "RULE",
        commas=True,
        complete="ci_tasks.features.lint.command:rule_names",
    ).field()
    json: bool = JSON.field()
    repo: str | None = REPO.field()
    rev: str | None = REV.field()
    workflow: str | None = WORKFLOW.field()


def rule_names(_given: object, _typed: str) -> Iterable[str]:
    from ci_tasks.features.lint.rules import RULES

    return RULES


def lint(options: LintOptions) -> int:
    """
    ci-tasks lint
    ci-tasks lint --ignore moving-image,no-timeout    all rules but these
    ci-tasks lint --rev v0.2.2 --json

    Errors come before warnings.
    """
    from ci_tasks.agent.codec import encode
    from ci_tasks.cli.output import print_json
    from ci_tasks.errors import UnknownName
    from ci_tasks.features.lint.lint_checkout import EXIT_CODES, find, print_findings
    from ci_tasks.features.lint.rules import RULES
    from ci_tasks.run.checkout_source import open_source

    ignored = [name.strip() for item in options.ignore for name in item.split(",") if name.strip()]
    for name in ignored:
        if name not in RULES:
            raise UnknownName("rule", name, RULES)
    source = open_source(options.repo, options.rev, options.workflow)
    findings = find(source, ignored)
    if options.json:
        print_json([encode(finding, versioned=False) for finding in findings])
    else:
        print(source.headline)
        print_findings(findings)
    return EXIT_CODES["findings" if findings else "no finding"]
