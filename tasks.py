"""The commands for `invoke`: `invoke --list` here, `ci-tasks --list` anywhere."""

from ci_tasks.cli.program import replace_invoke

replace_invoke()
