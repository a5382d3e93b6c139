"""A label's rows again and again on one tree: how often they fail, and in how many ways."""
