"""Logs: one reader of a log's lines, and what its consumers make of them."""
