"""Jobs that fail: what failed and why, does it fail here too, how often, is it yours, and since which commit."""

from ci_tasks.registry import Command, Feature

_HEADING = "Failures"
_COMMANDS = "ci_tasks.features.failures.command"

FEATURE = Feature(
    name="failures",
    commands=(
        Command(
            "triage",
            _HEADING,
            "Find what failed in a job's log, and why.",
            f"{_COMMANDS}:triage",
            json=("ci_tasks.records:Triage",),
        ),
        Command(
            "reproduce",
            _HEADING,
            "Run a job that failed in CI again, and compare.",
            f"{_COMMANDS}:reproduce",
            json=("ci_tasks.features.failures.reproduction.verdicts:ReproductionResult",),
            exit_codes="ci_tasks.features.failures.reproduction.verdicts:EXIT_CODES",
        ),
        Command(
            "compare",
            _HEADING,
            "Compare your tree with a base: is a failure yours?",
            f"{_COMMANDS}:compare",
            json=("ci_tasks.features.failures.comparison.result:ComparisonResult",),
            exit_codes="ci_tasks.features.failures.comparison.decision:EXIT_CODES",
        ),
        Command(
            "bisect",
            _HEADING,
            "Find the commit that made a row fail, flaky or not.",
            f"{_COMMANDS}:bisect",
            json=("ci_tasks.features.failures.bisection.bisection:BisectionResult",),
            exit_codes="ci_tasks.features.failures.bisection.bisection:EXIT_CODES",
        ),
    ),
    repeated_run=f"{_COMMANDS}:repeated_run",
)
