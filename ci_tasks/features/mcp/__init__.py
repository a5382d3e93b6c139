"""The commands as tools of an assistant, by the Model Context Protocol."""

from ci_tasks.registry import Command, Feature

_SUMMARY = "Serve the commands to an assistant over the Model Context Protocol."
FEATURE = Feature("mcp", commands=(Command("mcp", "Failures", _SUMMARY, f"{__name__}.command:mcp"),))
