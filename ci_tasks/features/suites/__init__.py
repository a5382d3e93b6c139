"""Suites of projects whose CI is known: slime's."""

from ci_tasks.registry import Feature

FEATURE = Feature("suites", needs=("recorder",), suite="ci_tasks.features.suites.slime:SUITE")
