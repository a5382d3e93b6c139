"""The end of a run: what is brought out of it, what is removed, what is kept."""
