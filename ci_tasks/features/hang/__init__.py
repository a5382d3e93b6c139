"""Why a run hangs, and which rank: what its agent saw of its processes, read and concluded from."""

from ci_tasks.registry import Command, Feature

FEATURE = Feature(
    name="hang",
    commands=(
        Command(
            "hang",
            "Failures",
            "Find why a run hangs, and which rank.",
            "ci_tasks.features.hang.command:hang",
            json=("ci_tasks.records:Hang",),
            exit_codes="ci_tasks.features.hang.analysis:EXIT_CODES",
        ),
    ),
    hang_analysis="ci_tasks.features.hang.analysis:analyse_hang",
)
