"""The end of a run: its record of the environment, and what is removed or kept."""
