"""The commands as tools of an assistant, by the Model Context Protocol."""

from ci_tasks.registry import Command, Feature

FEATURE = Feature(
    name="mcp",
    commands=(
        Command(
            "mcp",
            "Failures",
            "Serve the commands to an assistant, by the Model Context Protocol.",
            "ci_tasks.features.mcp.command:mcp",
        ),
    ),
)
