"""What changed between two runs of a row: what went in, what came out, and what may have caused it."""

from ci_tasks.registry import Command, Feature

FEATURE = Feature(
    name="difference",
    needs=("ci_logs",),
    commands=(
        Command(
            "diff",
            "Results",
            "Show what differs between two runs, the likely cause first.",
            "ci_tasks.features.difference.command:diff",
            json=("ci_tasks.features.difference.result:RunDifference",),
        ),
    ),
)
