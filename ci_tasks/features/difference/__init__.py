"""What changed between two runs of a row: what went in, what came out, and what may have caused it."""

from ci_tasks.registry import Command, Feature

FEATURE = Feature(
    name="difference",
    commands=(
        Command(
            "diff",
            "Results",
            "Show what differs between two runs, or from golden values.",
            "ci_tasks.features.difference.command:diff",
            json=(
                "ci_tasks.features.difference.compare:RunDifference",
                "ci_tasks.features.difference.values:ValuesComparison",
            ),
            exit_codes="ci_tasks.features.difference.values:EXIT_CODES",
        ),
    ),
)
