"""Features on the core, a folder each: its command, logic, words and help. `ci_tasks.registry` finds them."""
