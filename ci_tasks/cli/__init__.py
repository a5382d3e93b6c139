"""The command line: options, commands, help, completion, nox sessions and exit codes."""
