"""A connection that outlives its command: a process of the user's keeps it, and later commands open channels in it."""
