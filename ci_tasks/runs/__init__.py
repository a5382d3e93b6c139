"""Run directories and records on this machine."""
