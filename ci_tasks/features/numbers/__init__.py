"""What passing runs of a row give: its metrics by step, times and memory, and runs that are outside of that."""

from ci_tasks.registry import Command, Feature

FEATURE = Feature(
    name="numbers",
    needs=("difference",),
    commands=(
        Command(
            "numbers",
            "Results",
            "Show what passing runs of a row give, and which run does not fit.",
            "ci_tasks.features.numbers.command:numbers",
            json=("ci_tasks.features.numbers.result:RowNumbers[]", "ci_tasks.features.numbers.result:ExactComparison"),
        ),
    ),
    passed_check="ci_tasks.features.numbers.check_run:check_run",
)
