"""From a fresh clone to the first rows that pass: what this machine needs for the CPU labels of a checkout."""

from ci_tasks.registry import Command, Feature

FEATURE = Feature(
    name="setup",
    commands=(
        Command(
            "setup",
            "Run a CI label",
            "Make the checkout's CPU labels run on this machine.",
            "ci_tasks.features.setup.command:setup",
            json=("ci_tasks.features.setup.setup:SetupResult",),
            exit_codes="ci_tasks.records:EXIT_CODES",
        ),
    ),
)
