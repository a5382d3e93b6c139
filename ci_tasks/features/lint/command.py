"""The command `lint`."""

from __future__ import annotations

from collections.abc import Iterable

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import JSON, repeatable
from ci_tasks.cli.shared import CheckoutOptions, print_result


@dataclass(frozen=True)
class LintOptions(CheckoutOptions):
    ignore: tuple[str, ...] = repeatable(
        "all rules but this one; several with commas, or --ignore again",
        "RULE",
        commas=True,
        complete="ci_tasks.features.lint.command:rule_names",
    ).field()
    json: bool = JSON.field()


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
    from ci_tasks.errors import UnknownName
    from ci_tasks.features.lint.lint_checkout import EXIT_CODES, find, finding_lines
    from ci_tasks.features.lint.rules import RULES
    from ci_tasks.run.checkout_source import open_source

    ignored = [name.strip() for item in options.ignore for name in item.split(",") if name.strip()]
    for name in ignored:
        if name not in RULES:
            raise UnknownName("rule", name, RULES)
    source = open_source(options.repo, options.rev, options.workflow)
    findings = find(source, ignored)
    print_result(findings, lambda: [source.headline, *finding_lines(findings)], as_json=options.json)
    return EXIT_CODES["findings" if findings else "no finding"]
