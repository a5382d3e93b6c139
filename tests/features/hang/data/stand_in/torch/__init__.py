"""Stands for torch where it is not installed: places with its names."""
