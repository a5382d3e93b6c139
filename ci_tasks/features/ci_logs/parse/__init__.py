"""CI's own job logs: their lines without the prefix, what they tell of the job, and which row of a workflow it was."""
