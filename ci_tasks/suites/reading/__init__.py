"""A test's source, read without running it: which commands and trainings it would start, and with what."""
