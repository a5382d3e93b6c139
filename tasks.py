"""The commands: `invoke --list` here, `ci-tasks --list` anywhere. Thin: arguments → a flow → an exit code."""

from ci_tasks.cli import namespace

ns = namespace
