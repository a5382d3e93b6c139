"""What a host lacks, with the next step for each problem."""

from ci_tasks.registry import Command, Feature

FEATURE = Feature(
    name="doctor",
    commands=(
        Command(
            "doctor",
            "Hosts",
            "Check what a host lacks, with the next step for each problem.",
            "ci_tasks.features.doctor.command:doctor",
            json=("ci_tasks.features.doctor.examine:HostResult[]",),
        ),
    ),
)
