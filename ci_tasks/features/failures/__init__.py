"""Jobs that fail: what failed, and why."""

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
    ),
)
