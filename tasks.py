"""The commands for `invoke`: `invoke --list` here, `ci-tasks --list` anywhere."""

from ci_tasks.cli.program import namespace, replace_invoke

ns = namespace
replace_invoke()
