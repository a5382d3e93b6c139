"""Jobs that fail or hang: what failed and why, and which rank the others wait for."""

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
            "hang",
            _HEADING,
            "Find why a run hangs, and which rank.",
            f"{_COMMANDS}:hang",
            json=("ci_tasks.records:Hang",),
            exit_codes="ci_tasks.features.failures.hang.analysis:EXIT_CODES",
        ),
    ),
    hang_analysis="ci_tasks.features.failures.hang.analysis:analyse_hang",
)
