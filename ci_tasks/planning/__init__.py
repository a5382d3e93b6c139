"""Deciding: a row and a host → the script, its environment, the container rules and what differs from CI. Pure."""
