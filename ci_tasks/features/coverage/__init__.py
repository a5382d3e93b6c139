"""What the checkout's CI covers."""

from ci_tasks.registry import Command, Feature

FEATURE = Feature(
    name="coverage",
    needs=("recorder", "suites"),
    commands=(
        Command(
            "coverage",
            "Before a run",
            "Print what the checkout's CI covers, from its workflow and the sources of its tests.",
            "ci_tasks.features.coverage.command:coverage",
            json=(
                "ci_tasks.features.coverage.labels:CheckoutCoverage",
                "ci_tasks.features.coverage.labels:CoverageDiff",
            ),
        ),
    ),
)
