"""What happens when a command runs: prepare, place, execute, judge, record; and coming back to it."""
