"""Runs on another host, over a connection that may die and come back."""
