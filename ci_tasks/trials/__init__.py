"""Runs rows in settings until a rule decides: repeat, reproduce, compare and bisect, each a rule of one loop."""
