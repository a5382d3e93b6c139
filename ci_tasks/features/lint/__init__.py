"""Problems of a checkout's CI that can be seen before anything runs."""

from ci_tasks.registry import Command, Feature

FEATURE = Feature(
    name="lint",
    commands=(
        Command(
            "lint",
            "Before a run",
            "Check the checkout's CI for mistakes before anything runs.",
            "ci_tasks.features.lint.command:lint",
            json=("ci_tasks.features.lint.checkout_files:LintFinding[]",),
            exit_codes="ci_tasks.features.lint.lint_checkout:EXIT_CODES",
        ),
    ),
)
